#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sim {

// More devices than this are refused; tables are indexed by device without a lock.
inline constexpr int kMaxDevices = 16;

// What the device can do. It is set once, before the first use, and then only read.
struct Settings {
  int devices = 2;
  std::size_t memory_bytes = std::size_t{1} << 30;
  bool bf16 = true;
  bool streams = true;
  bool event_timing = true;
  bool pinned_memory = true;
  bool graphs = true;
  bool readable = false;
  bool poison = true;
};

// How long the device takes, in microseconds. They may change at any time.
struct Delays {
  std::atomic<std::int64_t> op_us{0};
  std::atomic<std::int64_t> copy_us{0};
  std::atomic<std::int64_t> collective_us{0};
  std::atomic<std::int64_t> collective_us_per_mib{0};
};

const Settings& settings();
Delays& delays();

// Takes the settings. The number of devices becomes 0 where their memory cannot be
// mapped: torch asks for it in places that must not raise.
void configure(const Settings& wanted);

// Sleeps instead of spinning: the host may have fewer cores than there are streams.
void sleep_us(std::int64_t duration_us);

}  // namespace sim
