// Why a request was refused, in words that help.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "arena.hpp"
#include "counters.hpp"

namespace drivetrain {

// Args:
//   size: What was asked for, in bytes.
//   counters: What the allocator has.
//   arenas: Where it has it.
//   capacity: The most that the allocator may reserve.
//   device_free: What nobody uses of the device.
std::string describe_refusal(Bytes size, const Counters& counters,
                             const std::vector<std::unique_ptr<Arena>>& arenas,
                             Bytes capacity, Bytes device_free);

}  // namespace drivetrain
