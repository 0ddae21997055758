// Rules that name the algorithm and the protocol of collectives, and the text form of
// them. `drivetrain_comm.nccl` reads the same form, with the same results and messages.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace drivetrain::nccl {

// A condition that every call fulfils.
constexpr int any = -1;

// The largest file that is read as a table.
constexpr std::size_t most_table_bytes = std::size_t{16} << 20;

struct Rule {
  int collective;
  std::uint64_t first_bytes;
  std::uint64_t last_bytes;  // itself included
  int ranks;
  int nodes;
  int algorithm;
  int protocol;
  int channels;  // 0 leaves the number to NCCL
  int num_pipe_ops;
  int reg_buff;
  int line;  // in its file
};

struct Table {
  std::vector<Rule> rules;
  std::string hash;  // of the rules, whatever their order and layout
};

// The message begins with the file, and the line if there is one.
struct TableError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Both throw TableError.
Table parse_table(std::string_view text, const std::string& source);
Table load_table(const std::string& path);

// Returns the places of two rules that would both decide some call, or nothing.
std::optional<std::pair<std::size_t, std::size_t>> find_overlap(
    const std::vector<Rule>& rules);

std::string hash_of(const std::vector<Rule>& rules);

}  // namespace drivetrain::nccl
