// What an allocator has done so far.

#pragma once

#include <algorithm>
#include <cstdint>

#include "units.hpp"

namespace drivetrain {

struct Counters {
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  // Requests for which pages had to move or memory had to come.
  std::uint64_t misses = 0;
  std::uint64_t out_of_memory = 0;
  // Chunks, in calls to the driver.
  std::uint64_t created = 0;
  std::uint64_t destroyed = 0;
  std::uint64_t mapped = 0;
  std::uint64_t unmapped = 0;
  std::uint64_t map_calls = 0;
  // Chunks that had been mapped elsewhere before, and those that came back to a page
  // that still mapped them.
  std::uint64_t remapped = 0;
  std::uint64_t returned = 0;
  // Chunks that came from another stream, and the waits that this took.
  std::uint64_t stolen = 0;
  std::uint64_t stream_waits = 0;
  // Times that the host waited for a stream.
  std::uint64_t host_waits = 0;
  // What tenants have; and that together with what other streams or processes
  // still use.
  Bytes live_bytes = 0;
  Bytes peak_live_bytes = 0;
  Bytes active_bytes = 0;
  Bytes peak_active_bytes = 0;
  // What tenants have that sleeps; it is none of the others.
  Bytes asleep_bytes = 0;
  Bytes reserved_bytes = 0;
  Bytes peak_reserved_bytes = 0;

  void raise_peaks() {
    peak_live_bytes = std::max(peak_live_bytes, live_bytes);
    peak_active_bytes = std::max(peak_active_bytes, active_bytes);
  }

  // A chunk is mapped by a call of its own; what is mapped together is made accessible
  // by one more.
  std::uint64_t driver_calls() const {
    return created + destroyed + mapped + map_calls + unmapped + stream_waits +
           host_waits;
  }
};

}  // namespace drivetrain
