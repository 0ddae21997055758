#include "ours.hpp"

#include "../error.hpp"

namespace drivetrain {

bool Ours::allocate(std::uint32_t id, Bytes size, unsigned stream) {
  try {
    addresses_[id] = allocator_.allocate(size, stream);
    return true;
  } catch (const OutOfMemory&) {
    return false;
  }
}

void Ours::free(std::uint32_t id) {
  const auto found = addresses_.find(id);
  allocator_.free(found->second);
  addresses_.erase(found);
}

void Ours::record_stream(std::uint32_t id, unsigned stream) {
  // A request of no bytes has no address.
  if (const Address at = addresses_.at(id)) {
    allocator_.record_stream(at, stream);
  }
}

Effort Ours::effort() {
  const Counters counters = allocator_.counters();
  Effort effort;
  effort.reserved_bytes = counters.reserved_bytes;
  effort.peak_reserved_bytes = counters.peak_reserved_bytes;
  effort.remapped_bytes = counters.remapped * driver_.chunk_bytes();
  effort.driver_calls = counters.driver_calls();
  effort.stream_waits = counters.stream_waits;
  return effort;
}

}  // namespace drivetrain
