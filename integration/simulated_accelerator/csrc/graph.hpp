#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <vector>

#include "stream_queue.hpp"

namespace sim {

// Work that was captured on one stream, to be queued again and again.
//
// The memory that it uses is the graph's own until `reset`. Random ops draw anew for
// each replay. A capture joins no second stream.
class CapturedGraph {
 public:
  CapturedGraph();
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  // Captures what the current stream is given; it must not be the default one.
  // A pool of another graph may be shared.
  void capture_begin(std::int64_t pool = 0);
  void capture_end();
  // Queues the captured work on the current stream.
  void replay();
  void reset();
  std::int64_t pool() const { return pool_; }

 private:
  enum State { kEmpty, kCapturing, kCaptured };

  State state_ = kEmpty;
  int device_ = 0;
  std::int64_t stream_ = 0;
  std::int64_t pool_ = 0;
  std::vector<MakeWork> work_;
};

bool is_capturing(int device, std::int64_t stream);

}  // namespace sim
