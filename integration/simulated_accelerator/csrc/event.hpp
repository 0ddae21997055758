#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "stream_queue.hpp"

namespace sim {

// A mark in a stream. Each recording makes a new version: who waits for an older one
// does not wait for a newer one.
//
// Queued work holds a reference, for an event may be destroyed while it is queued.
class Event : public std::enable_shared_from_this<Event> {
 public:
  explicit Event(bool timing) : timing_(timing) {}

  void record(StreamQueue& queue);
  // Makes a stream wait for the version of now. An event that was never recorded is
  // done.
  void block(StreamQueue& queue);
  bool query();
  void synchronize();
  // Milliseconds from this event to a later one.
  double elapsed_ms(Event& end);

 private:
  using Clock = std::chrono::steady_clock;

  void reach(std::uint64_t version);
  void wait_reached(std::uint64_t version);
  std::uint64_t num_recorded();
  // Raises for an event that only a graph's replay would reach.
  void check_not_captured();

  const bool timing_;
  std::mutex mutex_;
  std::condition_variable reached_;
  std::uint64_t num_recorded_ = 0;
  std::uint64_t num_reached_ = 0;
  int device_ = 0;
  bool is_captured_ = false;
  Clock::time_point time_;
};

}  // namespace sim
