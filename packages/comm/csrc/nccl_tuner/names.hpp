// How a table names collectives, algorithms and protocols; the place of a name is its
// number in NCCL.

#pragma once

#include <array>

namespace drivetrain::nccl {

constexpr std::array<const char*, 5> collectives = {"broadcast", "reduce", "all_gather",
                                                    "reduce_scatter", "all_reduce"};

constexpr std::array<const char*, 7> algorithms = {
    "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};

constexpr int collnet_direct = 2;
constexpr int collnet_chain = 3;
constexpr int nvls = 4;

constexpr std::array<const char*, 3> protocols = {"ll", "ll128", "simple"};

}  // namespace drivetrain::nccl
