// What another process needs to have a block too.

#pragma once

#include <vector>

#include "lease.hpp"
#include "units.hpp"

namespace drivetrain {

struct Shared {
  // Descriptors of the process that shares, which stay its allocator's: of the chunks
  // that the block lies in, one behind the other, and of the lease.
  std::vector<int> chunks;
  LeaseId lease;
  // Where the address lies from the beginning of the first chunk on.
  Bytes offset;
};

}  // namespace drivetrain
