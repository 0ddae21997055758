#include "lease.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "error.hpp"

namespace drivetrain {

namespace {

// Since Linux 5.3 and 5.6; older headers lack them.
constexpr long kPidfdOpen = 434;
constexpr long kPidfdGetfd = 438;
// Of the security module Yama.
constexpr int kSetPtracer = 0x59616D61;

[[noreturn]] void fail(pid_t pid, int error) {
  throw MisuseError("the memory that process " + std::to_string(pid) +
                    " shares cannot be fetched: " + std::strerror(error) +
                    "; it must live, and be this user's (in a container: with the "
                    "capability SYS_PTRACE, or kernel.yama.ptrace_scope=0)");
}

void close_all(const std::vector<int>& files) {
  for (const int file : files) {
    close(file);
  }
}

// A lock that belongs to what was opened, and not to the process: it is there until the
// last descriptor of it is closed.
struct flock whole_file(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

FetchedFiles::FetchedFiles(pid_t pid, const std::vector<int>& files) {
  const long process = syscall(kPidfdOpen, pid, 0);
  if (process < 0) {
    fail(pid, errno);
  }
  for (const int file : files) {
    const long got = syscall(kPidfdGetfd, process, file, 0);
    if (got < 0) {
      const int error = errno;
      close(static_cast<int>(process));
      close_all(files_);
      fail(pid, error);
    }
    files_.push_back(static_cast<int>(got));
  }
  close(static_cast<int>(process));
}

FetchedFiles::~FetchedFiles() { close_all(files_); }

Lease::Lease() : file_(memfd_create("drivetrain-memory", MFD_CLOEXEC)) {
  if (file_ < 0) {
    throw DriverError(std::string("memory is not shared: memfd_create: ") +
                      std::strerror(errno));
  }
  prctl(kSetPtracer, -1L, 0L, 0L, 0L);
}

Lease::~Lease() { close(file_); }

bool Lease::in_use() const {
  struct stat found = {};
  if (fstat(file_, &found) != 0 || static_cast<std::uint64_t>(found.st_size) < sent_) {
    return true;
  }
  struct flock lock = whole_file(F_WRLCK);
  return fcntl(file_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

LeaseHold::LeaseHold(pid_t pid, int file) {
  const FetchedFiles fetched(pid, {file});
  const std::string again = "/proc/self/fd/" + std::to_string(fetched.files()[0]);
  file_ = open(again.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
  if (file_ < 0) {
    fail(pid, errno);
  }
  struct flock lock = whole_file(F_RDLCK);
  if (fcntl(file_, F_OFD_SETLK, &lock) != 0 || write(file_, "", 1) != 1) {
    const int error = errno;
    close(file_);
    fail(pid, error);
  }
}

LeaseHold::~LeaseHold() { close(file_); }

}  // namespace drivetrain
