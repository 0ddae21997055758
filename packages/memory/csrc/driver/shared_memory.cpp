#include "shared_memory.hpp"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "../error.hpp"

namespace drivetrain {

namespace {

// Since Linux 5.3 and 5.6; older headers lack them.
constexpr long kPidfdOpen = 434;
constexpr long kPidfdGetfd = 438;
// Of the security module Yama.
constexpr int kSetPtracer = 0x59616D61;

// Descriptors of this process, which are closed with the object.
class Fetched {
 public:
  Fetched(pid_t pid, const std::vector<int>& files) {
    const long process = syscall(kPidfdOpen, pid, 0);
    if (process < 0) {
      fail(pid);
    }
    for (const int file : files) {
      const long got = syscall(kPidfdGetfd, process, file, 0);
      if (got < 0) {
        const int error = errno;
        close(static_cast<int>(process));
        close_all();
        errno = error;
        fail(pid);
      }
      files_.push_back(static_cast<int>(got));
    }
    close(static_cast<int>(process));
  }
  ~Fetched() { close_all(); }
  Fetched(const Fetched&) = delete;
  Fetched& operator=(const Fetched&) = delete;

  const std::vector<int>& files() const { return files_; }

 private:
  [[noreturn]] static void fail(pid_t pid) {
    throw MisuseError("the memory that process " + std::to_string(pid) +
                      " shares cannot be fetched: " + std::strerror(errno) +
                      "; it must live, and be this user's (in a container: with the "
                      "capability SYS_PTRACE, or kernel.yama.ptrace_scope=0)");
  }

  void close_all() {
    for (const int file : files_) {
      close(file);
    }
    files_.clear();
  }

  std::vector<int> files_;
};

}  // namespace

void allow_fetching() { prctl(kSetPtracer, -1L, 0L, 0L, 0L); }

SharedMemory::SharedMemory(CudaDriver& driver, pid_t pid, const std::vector<int>& files)
    : driver_(driver), count_(files.size()) {
  const Fetched fetched(pid, files);
  at_ = driver.open(fetched.files());
}

SharedMemory::~SharedMemory() {
  try {
    driver_.close(at_, count_);
  } catch (const DriverError&) {
    // The driver has ended before us, and all that was ours with it.
  }
}

}  // namespace drivetrain
