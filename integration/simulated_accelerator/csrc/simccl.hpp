#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace sim {

// Collectives of the device: they run on streams of their own, by a Gloo group that
// works on the bytes of the device.
c10::intrusive_ptr<c10d::Backend> make_simccl(c10::intrusive_ptr<c10d::Backend> gloo,
                                              std::chrono::milliseconds timeout);

}  // namespace sim
