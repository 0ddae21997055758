// Stands between a process and its storage: counts, records and spoils the libc calls
// by which files under one folder are changed. Loaded with LD_PRELOAD; it does nothing
// until the environment names the folder and the file that controls it.

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <string>

#include "call.hpp"

using namespace drivetrain_faults;

namespace {

int failed(const Call& call) {
  errno = call.error;
  return -1;
}

template <class Open>
int open_file(int folder, const char* path, int flags, const Open& really) {
  const std::string full = absolute(folder, path);
  const bool writes = (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0;
  if (!is_below_root(full)) return really();
  if (!writes && control()->reads.load() == 0) {
    const int fd = really();
    if (fd >= 0 && fd < kMostFiles) watched[fd] = true;
    return fd;
  }
  if (control()->buffered.load() != 0 && (flags & O_DIRECT) != 0) {
    errno = EINVAL;
    return -1;
  }
  Call call;
  if (call.error != 0) return failed(call);
  struct stat before;
  const bool is_new = (flags & O_CREAT) != 0 && lstat(full.c_str(), &before) != 0;
  const int fd = really();
  if (fd < 0) return fd;
  if (fd < kMostFiles) watched[fd] = true;
  if (is_new) call.record("create", full);
  if (!is_new && (flags & O_TRUNC) != 0) call.record("truncate", full);
  return fd;
}

template <class Write>
ssize_t write_file(int fd, const void* data, std::size_t size, off_t offset,
                   const Write& really) {
  Call call;
  if (call.error != 0) return failed(call);
  const std::string path = link_of(fd);
  if (call.is_short) {
    const bool is_direct = (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
    const std::size_t half = is_direct ? size / 2 / 4096 * 4096 : size / 2;
    if (half != 0) size = half;
  }
  const ssize_t done = really(size);
  if (done > 0) call.record("write", path, "", offset, done, data);
  return done;
}

template <class Change>
int change(const char* kind, const std::string& path, const std::string& other,
           const Change& really) {
  if (!is_below_root(path)) return really();
  Call call;
  if (call.error != 0) return failed(call);
  const int result = really();
  if (result == 0) call.record(kind, path, other);
  return result;
}

template <class Resize>
int resize(const char* kind, int fd, off_t offset, off_t size, const Resize& really) {
  if (!is_watched(fd)) return really();
  Call call;
  if (call.error != 0) return failed(call);
  const int result = really();
  if (result == 0) call.record(kind, link_of(fd), "", offset, size);
  return result;
}

template <class Sync>
int sync_file(int fd, const Sync& really) {
  if (!is_watched(fd)) return really();
  Call call;
  if (call.error != 0) return failed(call);
  const std::string path = link_of(fd);
  const int result = really();
  if (result == 0) call.record("sync", path);
  return result;
}

mode_t mode_in(int flags, va_list arguments) {
  return (flags & (O_CREAT | __O_TMPFILE)) != 0
             ? static_cast<mode_t>(va_arg(arguments, int))
             : 0;
}

}  // namespace

extern "C" {

#define OPEN(name)                                                   \
  int name(const char* path, int flags, ...) {                       \
    va_list arguments;                                               \
    va_start(arguments, flags);                                      \
    const mode_t mode = mode_in(flags, arguments);                   \
    va_end(arguments);                                               \
    return open_file(AT_FDCWD, path, flags,                          \
                     [&] { return REAL(name, path, flags, mode); }); \
  }
#define OPENAT(name)                                                         \
  int name(int folder, const char* path, int flags, ...) {                   \
    va_list arguments;                                                       \
    va_start(arguments, flags);                                              \
    const mode_t mode = mode_in(flags, arguments);                           \
    va_end(arguments);                                                       \
    return open_file(folder, path, flags,                                    \
                     [&] { return REAL(name, folder, path, flags, mode); }); \
  }
#define PWRITE(name)                                                                \
  ssize_t name(int fd, const void* data, size_t size, off_t at) {                   \
    if (!is_watched(fd)) return REAL(name, fd, data, size, at);                     \
    return write_file(fd, data, size, at,                                           \
                      [&](size_t some) { return REAL(name, fd, data, some, at); }); \
  }
#define FTRUNCATE(name)                                                           \
  int name(int fd, off_t size) noexcept {                                         \
    return resize("truncate", fd, 0, size, [&] { return REAL(name, fd, size); }); \
  }
#define ALLOCATE(name)                                             \
  int name(int fd, int mode, off_t at, off_t size) {               \
    return resize("allocate", fd, at, size,                        \
                  [&] { return REAL(name, fd, mode, at, size); }); \
  }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
PWRITE(pwrite)
PWRITE(pwrite64)
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)
ALLOCATE(fallocate)
ALLOCATE(fallocate64)

// What a compiler makes of open without a mode where it checks for overflows.
int __open_2(const char* path, int flags) { return open(path, flags); }
int __open64_2(const char* path, int flags) { return open(path, flags); }
int __openat_2(int folder, const char* path, int flags) {
  return openat(folder, path, flags);
}
int __openat64_2(int folder, const char* path, int flags) {
  return openat(folder, path, flags);
}

DIR* opendir(const char* path) {
  if (!is_below_root(absolute(AT_FDCWD, path)) || control()->reads.load() == 0)
    return REAL(opendir, path);
  Call call;
  if (call.error == 0) return REAL(opendir, path);
  failed(call);
  return nullptr;
}

ssize_t write(int fd, const void* data, size_t size) {
  if (!is_watched(fd)) return REAL(write, fd, data, size);
  return write_file(fd, data, size, lseek(fd, 0, SEEK_CUR),
                    [&](size_t some) { return REAL(write, fd, data, some); });
}

int fsync(int fd) {
  return sync_file(fd, [&] { return REAL(fsync, fd); });
}

int fdatasync(int fd) {
  return sync_file(fd, [&] { return REAL(fdatasync, fd); });
}

int close(int fd) {
  if (!is_watched(fd)) return REAL(close, fd);
  watched[fd] = false;
  if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) return REAL(close, fd);
  Call call;
  const int result = REAL(close, fd);  // it is closed even when it fails
  return call.error != 0 ? failed(call) : result;
}

int mkdir(const char* path, mode_t mode) noexcept {
  return change("mkdir", absolute(AT_FDCWD, path), "",
                [&] { return REAL(mkdir, path, mode); });
}

int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  return change("mkdir", absolute(folder, path), "",
                [&] { return REAL(mkdirat, folder, path, mode); });
}

int unlink(const char* path) noexcept {
  return change("unlink", absolute(AT_FDCWD, path), "",
                [&] { return REAL(unlink, path); });
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  return change((flags & AT_REMOVEDIR) != 0 ? "rmdir" : "unlink",
                absolute(folder, path), "",
                [&] { return REAL(unlinkat, folder, path, flags); });
}

int rmdir(const char* path) noexcept {
  return change("rmdir", absolute(AT_FDCWD, path), "",
                [&] { return REAL(rmdir, path); });
}

int rename(const char* from, const char* to) noexcept {
  return change("rename", absolute(AT_FDCWD, from), absolute(AT_FDCWD, to),
                [&] { return REAL(rename, from, to); });
}

int renameat(int folder, const char* from, int other, const char* to) noexcept {
  return change("rename", absolute(folder, from), absolute(other, to),
                [&] { return REAL(renameat, folder, from, other, to); });
}

int link(const char* from, const char* to) noexcept {
  return change("link", absolute(AT_FDCWD, from), absolute(AT_FDCWD, to),
                [&] { return REAL(link, from, to); });
}

int linkat(int folder, const char* from, int other, const char* to,
           int flags) noexcept {
  return change("link", absolute(folder, from), absolute(other, to),
                [&] { return REAL(linkat, folder, from, other, to, flags); });
}
}
