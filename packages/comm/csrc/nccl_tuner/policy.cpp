#include "policy.hpp"

#include <algorithm>
#include <tuple>

namespace drivetrain::nccl {

namespace {

bool holds(int condition, std::size_t value) {
  return condition == any || static_cast<std::size_t>(condition) == value;
}

// NCCL makes what would lose precision a thousand times as expensive, such as long
// rings of 8-bit floats, and does not tell what the numbers are. No measurement makes
// good for a model that is that far off, so that such a choice is left alone.
constexpr float most_relative_cost = 64;

bool is_ruled_out(float cost, const float* costs, int num_costs) {
  if (!(cost >= 0)) return true;
  for (int i = 0; i < num_costs; ++i)
    if (costs[i] > 0 && cost > most_relative_cost * costs[i]) return true;
  return false;
}

}  // namespace

Policy::Policy(const Table& table, std::size_t ranks, std::size_t nodes) {
  for (const Rule& rule : table.rules) {
    if (!holds(rule.ranks, ranks) || !holds(rule.nodes, nodes)) continue;
    ++num_rules_;
    const Entry entry{rule.num_pipe_ops,
                      rule.first_bytes,
                      rule.last_bytes,
                      {rule.algorithm, rule.protocol, rule.channels}};
    auto& both = entries_[static_cast<std::size_t>(rule.collective)];
    for (std::size_t reg_buff = 0; reg_buff < both.size(); ++reg_buff)
      if (holds(rule.reg_buff, reg_buff)) both[reg_buff].push_back(entry);
  }
  for (auto& both : entries_)
    for (Entries& entries : both)
      std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
        return std::tie(a.num_pipe_ops, a.first_bytes) <
               std::tie(b.num_pipe_ops, b.first_bytes);
      });
}

const Choice* Policy::find(int collective, std::uint64_t bytes, int num_pipe_ops,
                           bool reg_buff) const {
  if (collective < 0 || static_cast<std::size_t>(collective) >= entries_.size())
    return nullptr;
  const Entries& entries = entries_[static_cast<std::size_t>(collective)][reg_buff];
  const Choice* choice = find(entries, any, bytes);
  return choice ? choice : find(entries, num_pipe_ops, bytes);
}

// No two rules overlap: the last one that begins early enough is the only one that may
// hold.
const Choice* Policy::find(const Entries& entries, int num_pipe_ops,
                           std::uint64_t bytes) {
  const auto after =
      std::partition_point(entries.begin(), entries.end(), [&](const Entry& entry) {
        return std::tie(entry.num_pipe_ops, entry.first_bytes) <=
               std::tie(num_pipe_ops, bytes);
      });
  if (after == entries.begin()) return nullptr;
  const Entry& entry = *(after - 1);
  const bool holds = entry.num_pipe_ops == num_pipe_ops && bytes <= entry.last_bytes;
  return holds ? &entry.choice : nullptr;
}

void apply(const Choice& choice, float* costs, int num_algorithms, int num_protocols,
           int* channels) {
  if (choice.algorithm >= num_algorithms || choice.protocol >= num_protocols) return;
  float& cost = costs[choice.algorithm * num_protocols + choice.protocol];
  if (is_ruled_out(cost, costs, num_algorithms * num_protocols)) return;
  cost = 0;
  if (choice.channels) *channels = choice.channels;
}

}  // namespace drivetrain::nccl
