// Bytes, addresses and how they are rounded.

#pragma once

#include <cstddef>
#include <cstdint>

namespace drivetrain {

using Address = std::uint64_t;
using Bytes = std::uint64_t;

// Every block begins at, and has the size of, a multiple of this.
constexpr Bytes kUnit = 512;

constexpr Bytes round_up(Bytes value, Bytes unit) {
  return (value + unit - 1) / unit * unit;
}

constexpr Bytes round_down(Bytes value, Bytes unit) { return value / unit * unit; }

constexpr std::uint64_t ceil_div(Bytes value, Bytes unit) {
  return (value + unit - 1) / unit;
}

}  // namespace drivetrain
