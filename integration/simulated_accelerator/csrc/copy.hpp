#pragma once

#include <ATen/core/Tensor.h>

namespace sim {

// Copies by the rules of CUDA:
// - pinned host memory and non_blocking: queued, and the host's side is read or written
//   when the copy runs, so that an early change of it is seen;
// - pageable host memory: a source is staged before the call returns, a destination is
//   waited for;
// - a blocking copy waits for the current stream only;
// - between two devices: on the source's stream, and both streams wait for each other.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking);

}  // namespace sim
