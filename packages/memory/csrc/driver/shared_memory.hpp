// Memory of another process, mapped in this one.

#pragma once

#include <sys/types.h>

#include <vector>

#include "cuda_driver.hpp"

namespace drivetrain {

// Lets processes of the same user fetch descriptors of this one, where the system asks.
void allow_fetching();

class SharedMemory {
 public:
  // Maps chunks that another process shares.
  //
  // Args:
  //   pid: The other process.
  //   files: Its descriptors of the chunks, one behind the other.
  //
  // Throws MisuseError when that process is gone or out of reach, DriverError when the
  // device refuses.
  SharedMemory(CudaDriver& driver, pid_t pid, const std::vector<int>& files);
  // The host waits until nothing is under way there.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  Address at() const { return at_; }

 private:
  CudaDriver& driver_;
  std::size_t count_;
  Address at_ = 0;
};

}  // namespace drivetrain
