// A queue of frames in memory that two processes share: one writes, one reads.

#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "frame.hpp"

namespace drivetrain {

struct FrameQueueState {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  alignas(64) std::atomic<std::uint32_t> reader_sleeps;
  std::atomic<std::uint32_t> writer_waits;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

constexpr std::uint64_t queue_bytes = std::uint64_t{1} << 20;
// A frame lies in one run of bytes, and a second one must fit beside it.
constexpr std::uint64_t most_queue_payload = queue_bytes / 2 - 256;

struct FrameQueue {
  FrameQueueState* state;
  char* data;

  // Returns false if there is no room now; then `writer_waits` is set, and the reader
  // rings after it has read. The payload must fit into half of the ring.
  bool write(const Frame& frame, const std::vector<iovec>& payload);

  // Whether the reader must be rung after a write; clears its wish.
  bool must_ring_reader();
  bool must_ring_writer();

  // The next frame and its payload, or null. It stays until `pop`. Throws
  // std::runtime_error if what lies there is no frame.
  const Frame* front(const char*& payload);
  void pop();

  // Says that the reader is about to sleep. Returns false if there is a frame.
  bool prepare_sleep();
};

}  // namespace drivetrain
