// One collective on its way: which segments are done, and which may follow.

#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "frame.hpp"
#include "geometry.hpp"
#include "link.hpp"
#include "pieces.hpp"
#include "program.hpp"
#include "reduce.hpp"
#include "ticket.hpp"

namespace drivetrain {

struct Request {
  std::shared_ptr<const Program> program;
  std::uint32_t plan;
  Pieces vector;
  Type type;
  Operation operation;
  double factor;  // what `finish` multiplies with
  std::uint32_t num_channels;
  std::uint64_t segment_bytes;
  std::chrono::steady_clock::time_point deadline;
  std::shared_ptr<Ticket> ticket;
};

// Takes segments that may be sent now.
class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void push(std::int32_t peer, const Outgoing& item) = 0;
};

class Collective {
 public:
  Collective(Request request, std::uint64_t sequence, Outbox& outbox);

  void start();
  bool is_done() const { return num_left_ == 0; }
  std::uint64_t sequence() const { return sequence_; }
  const Request& request() const { return request_; }

  // Says how a peer's frame contradicts this rank's call; empty if it does not.
  std::string mismatch(std::int32_t peer, const Frame& frame) const;

  bool land(std::int32_t peer, const Frame& frame, std::vector<iovec>& to);
  void landed(std::int32_t peer, const Frame& frame);
  // Throws std::runtime_error for what cannot be a part of this.
  void deliver(std::int32_t peer, const Frame& frame, const char* payload);

  Frame frame_of(const Outgoing& item) const;
  void payload_of(const Outgoing& item, std::vector<iovec>& to) const;
  void sent(const Outgoing& item);

  // How many bytes a peer sends in all of this, if lane is the one from it.
  std::uint64_t num_bytes(const Lane& lane) const;
  std::uint64_t num_bytes(const Outgoing& item) const;

  // The peers whose data is missing, and whether a peer still has a part in this.
  std::vector<std::int32_t> awaited() const;
  bool needs(std::int32_t peer, std::int32_t channel = any_channel) const;

 private:
  struct LaneState {
    std::size_t position = 0;
    std::uint64_t segment = 0;
    bool is_landing = false;
    std::deque<std::vector<char>> held;
  };

  LaneState& state(std::uint32_t channel, std::uint32_t lane);
  const LaneState& state(std::uint32_t channel, std::uint32_t lane) const;
  std::uint64_t& num_done(std::uint32_t channel, std::uint32_t step);
  Range range(std::uint32_t channel, std::uint32_t step, std::uint64_t segment) const;
  bool is_ready(std::uint32_t channel, std::uint32_t step, std::uint64_t segment);
  bool skip_empty(std::uint32_t channel, std::uint32_t lane);
  void advance(std::uint32_t channel, std::uint32_t lane);
  void finish(std::uint32_t channel, std::uint32_t step);
  void apply(std::uint32_t channel, std::uint32_t step, std::uint64_t segment,
             const char* payload, std::uint64_t size);
  void complete(std::uint32_t channel, std::uint32_t step);
  void settle();

  Request request_;
  const Program& program_;
  const Geometry geometry_;
  const std::uint64_t sequence_;
  Outbox& outbox_;
  std::vector<std::uint64_t> num_done_;
  std::vector<LaneState> lanes_;
  std::uint64_t num_left_ = 0;
  struct Woken {
    std::uint32_t channel;
    std::uint32_t step;
  };
  std::vector<Woken> woken_;
};

}  // namespace drivetrain
