// What a user may ask of an allocator.

#pragma once

#include "units.hpp"

namespace drivetrain {

struct Options {
  // The most that is reserved of the device; 0 for all that it has.
  Bytes capacity_bytes = 0;
  // By what part more than the live peak is reserved before free memory is joined
  // instead; negative for as much as there is.
  double headroom = 0.02;
  // The most that may be mapped at all, counting each address; 0 for what is usual.
  Bytes mapped_bytes = 0;
};

}  // namespace drivetrain
