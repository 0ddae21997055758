#include "shared_memory.hpp"

#include "../error.hpp"

namespace drivetrain {

SharedMemory::SharedMemory(CudaDriver& driver, pid_t pid, const Shared& shared)
    : hold_(pid, shared.lease),
      driver_(driver),
      count_(shared.chunks.size()),
      offset_(shared.offset) {
  const OtherProcess other(pid);
  at_ =
      driver.open(count_, [&](std::size_t i) { return other.fetch(shared.chunks[i]); });
}

SharedMemory::~SharedMemory() {
  try {
    driver_.close(at_, count_);
  } catch (const DriverError&) {
    // The driver has ended before us, and all that was ours with it.
  }
}

}  // namespace drivetrain
