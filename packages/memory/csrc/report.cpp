#include "report.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

namespace drivetrain {

namespace {

// How many sizes of tenants are named.
constexpr std::size_t kShown = 5;

std::string in_mib(Bytes bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

struct Unused {
  Bytes whole = 0;
  Bytes parts = 0;
  Bytes of_graphs = 0;
};

Unused unused(const std::vector<std::unique_ptr<Arena>>& arenas) {
  Unused found;
  for (const auto& arena : arenas) {
    arena->free().ascending([&](const Block* block) {
      const Bytes whole = whole_pages(*block).count() * block->extent->chunk_bytes;
      if (arena->graph() != 0) {
        found.of_graphs += block->size;
      } else {
        found.whole += whole;
        found.parts += block->size - whole;
      }
      return true;
    });
  }
  return found;
}

// The sizes that tenants hold most of, as "3 x 512.00 MiB".
std::string largest_tenants(const BlockTable& live) {
  std::map<Bytes, std::uint64_t> counts;
  live.each([&](const Block& block) {
    if (!block.extent->arena->is_asleep()) {
      ++counts[block.size];
    }
  });
  std::vector<std::pair<Bytes, std::uint64_t>> sizes(counts.begin(), counts.end());
  const std::size_t shown = std::min(kShown, sizes.size());
  std::partial_sort(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(shown),
                    sizes.end(), [](const auto& a, const auto& b) {
                      return a.first * a.second > b.first * b.second;
                    });
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(sizes[i].second) + " x " +
            in_mib(sizes[i].first);
  }
  return text;
}

// What would help, from what is in the way.
std::string advice(Bytes size, const Unused& rest, Bytes pending, Bytes foreign) {
  if (rest.of_graphs >= size) {
    return "graphs keep enough of it: capture fewer, or let them share a pool";
  }
  if (pending >= size) {
    return "other streams or processes still use enough of it: free it, or wait for "
           "them, "
           "earlier";
  }
  if (foreign > 0 && rest.whole + foreign >= size) {
    return "enough of the device is used by others: see nvidia-smi";
  }
  if (rest.parts >= size) {
    return "small tenants lie in chunks with much free memory: free those that live "
           "long, or allocate them first";
  }
  return "a smaller micro-batch, activation checkpointing or sharded states need less";
}

}  // namespace

std::string describe_refusal(const std::string& wish, Bytes size,
                             const Counters& counters,
                             const std::vector<std::unique_ptr<Arena>>& arenas,
                             const BlockTable& live, Bytes spare, Bytes capacity,
                             Bytes device_total, Bytes device_free) {
  Unused rest = unused(arenas);
  rest.whole += spare;
  const Bytes pending = counters.active_bytes - counters.live_bytes;
  const Bytes known = counters.reserved_bytes + device_free;
  const Bytes foreign = device_total > known ? device_total - known : 0;
  std::string text = "Tried to " + wish + in_mib(size) + ". ";
  text += "Tenants have " + in_mib(counters.live_bytes) + " of the " +
          in_mib(counters.reserved_bytes) + " that are reserved, of at most " +
          in_mib(capacity) + "; the device has " + in_mib(device_free) + " left, and " +
          in_mib(foreign) + " are not ours. ";
  text += "All free memory was joined: " + in_mib(rest.whole) + " in whole chunks; " +
          in_mib(rest.parts) + " lie in parts of chunks that others use";
  if (pending > 0) {
    text += ", " + in_mib(pending) + " are still used by other streams or processes";
  }
  if (rest.of_graphs > 0) {
    text += ", " + in_mib(rest.of_graphs) + " are private to graphs";
  }
  if (counters.asleep_bytes > 0) {
    text += "; what sleeps needs " + in_mib(counters.asleep_bytes) + " to wake";
  }
  text += ". ";
  const std::string tenants = largest_tenants(live);
  if (!tenants.empty()) {
    text += "Most is held by " + tenants + ". ";
  }
  return text + "What may help: " + advice(size, rest, pending, foreign) + ".";
}

}  // namespace drivetrain
