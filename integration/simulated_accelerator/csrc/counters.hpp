#pragma once

#include <atomic>
#include <cstdint>

namespace sim {

// What the device has done in this process.
struct Counters {
  std::atomic<std::int64_t> launches{0};
  std::atomic<std::int64_t> synchronizations{0};
  std::atomic<std::int64_t> asynchronous_ops{0};
  std::atomic<std::int64_t> synchronous_ops{0};
  std::atomic<std::int64_t> shape_cache_hits{0};
  std::atomic<std::int64_t> shape_cache_misses{0};
};

inline Counters& counters() {
  static Counters& instance = *new Counters;
  return instance;
}

}  // namespace sim
