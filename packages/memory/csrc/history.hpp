// What happened last, for a memory viewer.

#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "units.hpp"

namespace drivetrain {

enum class Action : std::uint32_t {
  kAllocate = 0,
  kFreeRequested = 1,
  // Later than the request, where other streams used the memory too.
  kFreeCompleted = 2,
  kOutOfMemory = 3,
  // Addresses whose memory went back to the device, and came again.
  kSleep = 4,
  kWake = 5,
};

struct HistoryEntry {
  Action action;
  std::uint32_t graph;
  Address at;
  Bytes size;
  std::uint64_t stream;
  std::uint64_t time_us;
};

// A ring of the last entries; keeps none until it is told how many.
class History {
 public:
  bool on() const { return most_ > 0; }

  // Forgets what there is, and keeps so many from now on.
  void keep(std::size_t most) {
    entries_.clear();
    next_ = 0;
    most_ = most;
  }

  void add(Action action, Address at, Bytes size, std::uint64_t stream,
           std::uint64_t graph) {
    if (!on()) {
      return;
    }
    const HistoryEntry entry{
        action, static_cast<std::uint32_t>(graph), at, size, stream, now_us()};
    if (entries_.size() < most_) {
      entries_.push_back(entry);
    } else {
      entries_[next_] = entry;
      next_ = (next_ + 1) % most_;
    }
  }

  // The entries, the oldest first.
  std::vector<HistoryEntry> entries() const {
    std::vector<HistoryEntry> found(entries_);
    std::rotate(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(next_),
                found.end());
    return found;
  }

 private:
  static std::uint64_t now_us() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(now).count());
  }

  std::vector<HistoryEntry> entries_;
  std::size_t next_ = 0;
  std::size_t most_ = 0;
};

}  // namespace drivetrain
