// What precedes every payload between two ranks.

#pragma once

#include <cstdint>

namespace drivetrain {

constexpr std::uint32_t frame_magic = 0x31435444;  // "DTC1"

enum class FrameKind : std::uint8_t {
  data,
  abort,  // the payload says why
  skip,   // nothing more until the end of a ring
  begun   // all collectives up to this one have begun; no payload
};

struct Frame {
  std::uint32_t magic;
  FrameKind kind;
  std::uint8_t channel;
  std::uint8_t type;
  std::uint8_t operation;
  std::uint32_t plan;  // a digest of the algorithm and what it was made for
  std::uint32_t size;  // of the payload, in bytes
  std::uint64_t sequence;
  std::uint64_t total;  // the whole vector, in bytes
};
static_assert(sizeof(Frame) == 32);

}  // namespace drivetrain
