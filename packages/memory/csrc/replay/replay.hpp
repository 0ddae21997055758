// Plays a trace to a subject.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "subject.hpp"
#include "trace.hpp"

namespace drivetrain {

struct Played {
  // Events that were served: all of them, unless a request did not fit.
  std::uint64_t served = 0;
  Bytes peak_live_bytes = 0;
  Effort effort;
  // Calls to the driver in each step, the part before the first step among them.
  std::vector<std::uint64_t> calls_by_step;
};

// Throws MisuseError for a trace that frees what is not live, allocates what is, or has
// an event of no known kind.
Played replay(const TraceEvent* events, std::size_t count, Subject& subject);

}  // namespace drivetrain
