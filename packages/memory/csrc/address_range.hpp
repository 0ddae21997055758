// Where in an arena a request fits with the fewest pages to be filled.

#pragma once

#include <cstdint>
#include <vector>

#include "arena.hpp"

namespace drivetrain {

// Free blocks and holes, one behind the other, that hold a request.
struct AddressRange {
  // The block that the range begins in; null when there is no range.
  Block* first = nullptr;
  Address begin = 0;
  double cost = 0.0;
};

// The cost of a page that cannot be filled now.
constexpr double kBlocked = 1e9;

// Returns the cheapest range of an extent, the lowest among equals.
//
// Args:
//   extent: Where to look.
//   size: Of the request, in bytes.
//   costs: What it costs to fill each page below `extent.high`; 0 if it holds a chunk.
//   untouched: What it costs to fill one that was never mapped.
//   limit: Ranges that cost as much or more are of no interest.
AddressRange cheapest_range(const Extent& extent, Bytes size,
                            const std::vector<double>& costs, double untouched,
                            double limit);

}  // namespace drivetrain
