#include "shared_memory.hpp"

#include <memory>
#include <string>
#include <utility>

#include "../error.hpp"

namespace drivetrain {

SharedMemory::SharedMemory(CudaDriver& driver, pid_t pid, const Shared& shared,
                           Bytes size)
    : driver_(driver), count_(shared.chunks.size()), offset_(shared.offset) {
  const Bytes bytes = count_ * driver.chunk_bytes();
  if (count_ == 0 || offset_ > bytes || size > bytes - offset_) {
    throw MisuseError(std::to_string(size) + " bytes at " + std::to_string(offset_) +
                      " do not lie in the " + std::to_string(bytes) +
                      " bytes of the chunks that process " + std::to_string(pid) +
                      " shares");
  }
  const OtherProcess owner(pid);
  hold_ = std::make_shared<LeaseHold>(owner, shared.lease);
  at_ =
      driver.open(count_, [&](std::size_t i) { return owner.fetch(shared.chunks[i]); });
}

SharedMemory::~SharedMemory() {
  try {
    driver_.close(at_, count_, std::move(hold_));
  } catch (const DriverError&) {
    // The driver has ended before us, and all that was ours with it.
  }
}

}  // namespace drivetrain
