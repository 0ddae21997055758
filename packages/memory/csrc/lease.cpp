#include "lease.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>

#include "error.hpp"

namespace drivetrain {

namespace {

// Since Linux 5.3 and 5.6; older headers lack them.
constexpr long kPidfdOpen = 434;
constexpr long kPidfdGetfd = 438;
// Of the security module Yama.
constexpr int kSetPtracer = 0x59616D61;
// The number of the lease lies first; then comes a byte of each who took the memory.
constexpr auto kNumberBytes = static_cast<ssize_t>(sizeof(std::uint64_t));

[[noreturn]] void fail(pid_t pid, int error) {
  std::string help =
      "it must live, and be this user's (in a container: with the capability "
      "SYS_PTRACE, or kernel.yama.ptrace_scope=0)";
  if (error == EMFILE || error == ENFILE) {
    help = "each tensor has a file descriptor here, see ulimit -n";
  }
  throw MisuseError("the memory that process " + std::to_string(pid) +
                    " shares cannot be fetched: " + std::strerror(error) + "; " + help);
}

[[noreturn]] void fail_ended(pid_t pid) {
  throw MisuseError("process " + std::to_string(pid) +
                    " shares this memory no longer: what is sent once is taken once");
}

// A lock that belongs to what was opened, and not to the process: it is there until the
// last descriptor of it is closed.
struct flock whole_file(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

std::uint64_t draw_number() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

// Opened once more, since a lock belongs to what was opened.
int open_again(const OtherProcess& owner, int file) {
  const int fetched = owner.fetch(file);
  const std::string again = "/proc/self/fd/" + std::to_string(fetched);
  const int opened = open(again.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
  const int failed = errno;
  close(fetched);
  if (opened < 0) {
    fail(owner.pid(), failed);
  }
  return opened;
}

}  // namespace

OtherProcess::OtherProcess(pid_t pid)
    : pid_(pid), handle_(static_cast<int>(syscall(kPidfdOpen, pid, 0))) {
  if (handle_.get() < 0) {
    fail(pid, errno);
  }
}

int OtherProcess::fetch(int file) const {
  const auto got = static_cast<int>(syscall(kPidfdGetfd, handle_.get(), file, 0));
  if (got < 0) {
    fail(pid_, errno);
  }
  return got;
}

Lease::Lease()
    : file_(memfd_create("drivetrain-memory", MFD_CLOEXEC)), number_(draw_number()) {
  if (pwrite(file_.get(), &number_, sizeof number_, 0) != kNumberBytes) {
    throw DriverError(std::string("memory is not shared: memfd_create: ") +
                      std::strerror(errno));
  }
  prctl(kSetPtracer, -1L, 0L, 0L, 0L);
}

Lease::~Lease() {
  // Who has fetched the file, but has not locked it yet, finds that it comes too late.
  if (ftruncate(file_.get(), 0) != 0) {
    // A child that was forked has the file no longer, and ends nothing.
  }
}

bool Lease::end() {
  struct stat found = {};
  if (fstat(file_.get(), &found) != 0 ||
      found.st_size < kNumberBytes + static_cast<off_t>(sent_)) {
    return false;
  }
  struct flock lock = whole_file(F_WRLCK);
  return fcntl(file_.get(), F_OFD_SETLK, &lock) == 0;
}

LeaseHold::LeaseHold(const OtherProcess& owner, LeaseId lease)
    : file_(open_again(owner, lease.first)) {
  struct flock lock = whole_file(F_RDLCK);
  std::uint64_t number = 0;
  if (fcntl(file_.get(), F_OFD_SETLK, &lock) != 0 ||
      pread(file_.get(), &number, sizeof number, 0) != kNumberBytes ||
      number != lease.second) {
    fail_ended(owner.pid());
  }
  if (write(file_.get(), "", 1) != 1) {
    fail(owner.pid(), errno);
  }
}

}  // namespace drivetrain
