// What makes two tables the same: their rules, not the order or the layout of them.

#include <algorithm>
#include <array>

#include "sha256.hpp"
#include "table.hpp"

namespace drivetrain::nccl {

namespace {

using Numbers = std::array<std::uint64_t, 10>;

std::uint64_t condition(int value) {
  return value == any ? 0 : static_cast<std::uint64_t>(value) + 1;
}

Numbers numbers_of(const Rule& rule) {
  return {static_cast<std::uint64_t>(rule.collective),
          rule.first_bytes,
          rule.last_bytes,
          condition(rule.ranks),
          condition(rule.nodes),
          static_cast<std::uint64_t>(rule.algorithm),
          static_cast<std::uint64_t>(rule.protocol),
          static_cast<std::uint64_t>(rule.channels),
          condition(rule.num_pipe_ops),
          condition(rule.reg_buff)};
}

}  // namespace

std::string hash_of(const std::vector<Rule>& rules) {
  std::vector<Numbers> sorted;
  sorted.reserve(rules.size());
  for (const Rule& rule : rules) sorted.push_back(numbers_of(rule));
  std::sort(sorted.begin(), sorted.end());
  std::string text = "drivetrain-nccl-table 1\n";
  for (const Numbers& numbers : sorted) {
    for (const std::uint64_t number : numbers) text += std::to_string(number) + ' ';
    text.back() = '\n';
  }
  return sha256(text);
}

}  // namespace drivetrain::nccl
