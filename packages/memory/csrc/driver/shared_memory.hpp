// Memory of another process, mapped in this one.

#pragma once

#include <sys/types.h>

#include "../lease.hpp"
#include "../shared.hpp"
#include "cuda_driver.hpp"

namespace drivetrain {

class SharedMemory {
 public:
  // Maps chunks that another process shares.
  //
  // Args:
  //   pid: The other process.
  //   shared: What its `Allocator::share` returned.
  //
  // Throws MisuseError when that process is gone or out of reach, DriverError when the
  // device refuses.
  SharedMemory(CudaDriver& driver, pid_t pid, const Shared& shared);
  // The host waits until nothing is under way there.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  Address at() const { return at_ + offset_; }

 private:
  // Given up last.
  LeaseHold hold_;
  CudaDriver& driver_;
  std::size_t count_;
  Bytes offset_;
  Address at_ = 0;
};

}  // namespace drivetrain
