// What all versions of the interface call. Nothing here throws or fails: NCCL passes an
// error of a tuner on, and the collective or the communicator fails with it.

#pragma once

#include "abi.hpp"

namespace drivetrain::nccl {

// Reads the table that the environment names. Returns the context of a communicator, or
// nullptr where NCCL decides everything, and says in NCCL's log which, and why.
void* start(std::size_t ranks, std::size_t nodes, Log log) noexcept;

// NCCL passes its costs as rows, but they are one piece of memory.
Result choose(void* context, int collective, std::size_t bytes, int num_pipe_ops,
              float** costs, int num_algorithms, int num_protocols, int reg_buff,
              int* channels) noexcept;

Result finish(void* context) noexcept;

}  // namespace drivetrain::nccl
