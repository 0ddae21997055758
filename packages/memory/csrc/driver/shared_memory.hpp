// Memory of another process, mapped in this one.

#pragma once

#include <sys/types.h>

#include <memory>

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
  //   shared: What its `Allocator::share` returned, once for each time.
  //   size: How many bytes are needed from the address on.
  //
  // Throws MisuseError when that process is gone or out of reach, shares it no longer,
  // or has fewer bytes there; DriverError when the device refuses.
  SharedMemory(CudaDriver& driver, pid_t pid, const Shared& shared, Bytes size);
  // The host waits until nothing is under way there. Where it may not, as in a capture,
  // this process has the memory until the driver opens or closes another.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  Address at() const { return at_ + offset_; }

 private:
  std::shared_ptr<LeaseHold> hold_;
  CudaDriver& driver_;
  std::size_t count_;
  Bytes offset_;
  Address at_ = 0;
};

}  // namespace drivetrain
