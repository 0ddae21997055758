// What one rank does in a collective: steps on chunks of a vector, in an order that any
// rank could follow alone. A step waits for those before it that touch the same chunk,
// and for nothing else.

#pragma once

#include <cstdint>
#include <vector>

namespace drivetrain {

enum class Kind : std::int32_t {
  send,     // the chunk, to a peer
  receive,  // a peer's chunk, in place of one's own
  reduce,   // a peer's chunk, into one's own
  finish    // the chunk is reduced: an average divides it
};

struct Step {
  Kind kind;
  std::int32_t peer;
  std::int32_t chunk;
};

// Steps that send to one peer, or receive from it; they happen in this order.
struct Lane {
  std::int32_t peer;
  bool sends;
  std::vector<std::uint32_t> steps;
};

struct Program {
  static constexpr std::uint32_t no_lane = UINT32_MAX;

  // Throws std::invalid_argument for a chunk or a peer that there is not.
  Program(std::vector<Step> steps, std::int32_t num_chunks, std::int32_t num_ranks);

  // The lane of what a peer sends here, or no_lane.
  std::uint32_t lane_from(std::int32_t peer) const;

  std::vector<Step> steps;
  std::int32_t num_chunks;
  // For each step, those whose segments it follows one by one, and those that follow.
  std::vector<std::vector<std::uint32_t>> needs;
  std::vector<std::vector<std::uint32_t>> feeds;
  std::vector<Lane> lanes;
  std::vector<std::uint32_t> lane_of;

 private:
  void find_needs();
  void find_lanes();
};

}  // namespace drivetrain
