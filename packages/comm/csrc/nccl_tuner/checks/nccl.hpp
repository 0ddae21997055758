// A communicator as NCCL would drive one, for the programs of this folder.

#pragma once

#include <array>

#include "../abi.hpp"

// The fields that versions 5 and 6 have in common, in their order.
struct Tuner {
  const char* name;
  drivetrain::nccl::Result (*init)(void** context, std::uint64_t communicator,
                                   std::size_t ranks, std::size_t nodes,
                                   drivetrain::nccl::Log log, void* domains,
                                   void* constants);
  drivetrain::nccl::Result (*get_coll_info)(void* context, int collective,
                                            std::size_t bytes, int num_pipe_ops,
                                            float** costs, int num_algorithms,
                                            int num_protocols, int reg_buff,
                                            int* channels);
  drivetrain::nccl::Result (*finalize)(void* context);
};

constexpr int all_reduce = 4;
constexpr int num_algorithms = 7;
constexpr int num_protocols = 3;

using Costs = std::array<float, num_algorithms * num_protocols>;
