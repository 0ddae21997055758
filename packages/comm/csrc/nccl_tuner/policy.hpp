// The rules of a table that hold for one communicator, and how they decide a
// collective.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "names.hpp"
#include "table.hpp"

namespace drivetrain::nccl {

struct Choice {
  int algorithm;
  int protocol;
  int channels;  // 0 leaves the number to NCCL
};

// Does not change, so that any number of threads may use it at once.
class Policy {
 public:
  Policy(const Table& table, std::size_t ranks, std::size_t nodes);

  // Returns what is to be used, or nullptr where NCCL decides. Neither locks nor
  // allocates.
  const Choice* find(int collective, std::uint64_t bytes, int num_pipe_ops,
                     bool reg_buff) const;

  std::size_t num_rules() const { return num_rules_; }

 private:
  struct Entry {
    int num_pipe_ops;
    std::uint64_t first_bytes;
    std::uint64_t last_bytes;
    Choice choice;
  };
  using Entries = std::vector<Entry>;

  static const Choice* find(const Entries& entries, int num_pipe_ops,
                            std::uint64_t bytes);

  // For each collective, without registered buffers and with them.
  std::array<std::array<Entries, 2>, collectives.size()> entries_;
  std::size_t num_rules_ = 0;
};

// Makes NCCL take a choice: costs are microseconds, by algorithm and then protocol, and
// NCCL takes the least of them. What NCCL cannot do costs less than nothing, and what
// it must not do very much; such a choice changes nothing.
void apply(const Choice& choice, float* costs, int num_algorithms, int num_protocols,
           int* channels);

}  // namespace drivetrain::nccl
