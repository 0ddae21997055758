// What a program asked of an allocator, event by event.

#pragma once

#include <cstdint>

#include "../units.hpp"

namespace drivetrain {

enum class Operation : std::uint8_t {
  kAllocate = 0,
  kFree = 1,
  // The block is used on another stream too.
  kRecordStream = 2,
  // A step of the training begins.
  kStep = 3,
};

// The layout is that of trace files, little-endian.
struct TraceEvent {
  Operation operation;
  std::uint8_t stream;
  std::uint8_t pool;
  // Whether the size is proportional to the batch; replays do not look at it.
  std::uint8_t scales;
  // Names a block from its allocation until it is freed.
  std::uint32_t id;
  Bytes size;
};

static_assert(sizeof(TraceEvent) == 16, "as in the file");

}  // namespace drivetrain
