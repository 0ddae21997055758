// Why a request was refused, in words that help.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "arena.hpp"
#include "block_table.hpp"
#include "counters.hpp"

namespace drivetrain {

// Args:
//   wish: What was asked for, as "allocate ".
//   size: How much, in bytes.
//   counters: What the allocator has.
//   arenas: Where it has it.
//   live: The tenants.
//   spare: What nobody has, and no arena.
//   capacity: The most that the allocator may reserve.
//   device_total, device_free: What the device has, and what nobody uses of it.
std::string describe_refusal(const std::string& wish, Bytes size,
                             const Counters& counters,
                             const std::vector<std::unique_ptr<Arena>>& arenas,
                             const BlockTable& live, Bytes spare, Bytes capacity,
                             Bytes device_total, Bytes device_free);

}  // namespace drivetrain
