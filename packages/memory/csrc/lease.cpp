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

// A lock that belongs to what was opened, and not to the process: it is there until the
// last descriptor of it is closed.
struct flock whole_file(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

OtherProcess::OtherProcess(pid_t pid)
    : pid_(pid), handle_(static_cast<int>(syscall(kPidfdOpen, pid, 0))) {
  if (handle_ < 0) {
    fail(pid, errno);
  }
}

OtherProcess::~OtherProcess() { close(handle_); }

int OtherProcess::fetch(int file) const {
  const auto got = static_cast<int>(syscall(kPidfdGetfd, handle_, file, 0));
  if (got < 0) {
    fail(pid_, errno);
  }
  return got;
}

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
  // Opened once more, since a lock belongs to what was opened.
  const int fetched = OtherProcess(pid).fetch(file);
  const std::string again = "/proc/self/fd/" + std::to_string(fetched);
  file_ = open(again.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
  const int failed = errno;
  close(fetched);
  if (file_ < 0) {
    fail(pid, failed);
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
