// Which rules would both decide one call. Conditions that are `any` make this more than
// a search for intervals that meet: rules are taken together by which of their
// conditions are fixed, and within two such classes sorted by what is fixed in both.

#include <algorithm>
#include <array>
#include <map>

#include "table.hpp"

namespace drivetrain::nccl {

namespace {

constexpr std::size_t num_conditions = 4;

using Places = std::pair<std::size_t, std::size_t>;

std::array<int, num_conditions> conditions_of(const Rule& rule) {
  return {rule.ranks, rule.nodes, rule.num_pipe_ops, rule.reg_buff};
}

// A bit for each condition that is fixed.
unsigned fixed_in(const Rule& rule) {
  unsigned bits = 0;
  const auto conditions = conditions_of(rule);
  for (std::size_t i = 0; i < num_conditions; ++i)
    if (conditions[i] != any) bits |= 1u << i;
  return bits;
}

struct Entry {
  std::array<int, num_conditions + 1> key;
  std::uint64_t first_bytes;
  std::size_t place;
  std::size_t side;

  bool operator<(const Entry& other) const {
    if (key != other.key) return key < other.key;
    if (first_bytes != other.first_bytes) return first_bytes < other.first_bytes;
    return place < other.place;
  }
};

Entry make_entry(const Rule& rule, std::size_t place, std::size_t side,
                 unsigned fixed) {
  Entry entry{{rule.collective}, rule.first_bytes, place, side};
  const auto conditions = conditions_of(rule);
  for (std::size_t i = 0; i < num_conditions; ++i)
    entry.key[i + 1] = fixed & 1u << i ? conditions[i] : any;
  return entry;
}

// Goes through entries of two classes in order and notes where one reaches into
// another.
void sweep(const std::vector<Rule>& rules, const std::vector<Entry>& entries,
           bool is_one_class, std::optional<Places>& least) {
  std::array<const Entry*, 2> farthest{};
  for (const Entry& entry : entries) {
    const Entry* other = farthest[is_one_class ? 0 : 1 - entry.side];
    if (other && other->key == entry.key &&
        rules[other->place].last_bytes >= entry.first_bytes) {
      const Places found = {std::max(other->place, entry.place),
                            std::min(other->place, entry.place)};
      if (!least || found < *least) least = found;
    }
    const Entry*& mine = farthest[entry.side];
    if (!mine || mine->key != entry.key ||
        rules[entry.place].last_bytes > rules[mine->place].last_bytes)
      mine = &entry;
  }
}

}  // namespace

std::optional<Places> find_overlap(const std::vector<Rule>& rules) {
  std::map<unsigned, std::vector<std::size_t>> classes;
  for (std::size_t i = 0; i < rules.size(); ++i)
    classes[fixed_in(rules[i])].push_back(i);
  std::optional<Places> least;  // the later rule first
  for (auto one = classes.begin(); one != classes.end(); ++one) {
    for (auto other = one; other != classes.end(); ++other) {
      const unsigned fixed = one->first & other->first;
      std::vector<Entry> entries;
      for (const std::size_t place : one->second)
        entries.push_back(make_entry(rules[place], place, 0, fixed));
      if (one != other)
        for (const std::size_t place : other->second)
          entries.push_back(make_entry(rules[place], place, 1, fixed));
      std::sort(entries.begin(), entries.end());
      sweep(rules, entries, one == other, least);
    }
  }
  if (!least) return {};
  return Places{least->second, least->first};
}

}  // namespace drivetrain::nccl
