#include "report.hpp"

#include <algorithm>
#include <cstdio>

namespace drivetrain {

namespace {

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

}  // namespace

std::string describe_refusal(Bytes size, const Counters& counters,
                             const std::vector<std::unique_ptr<Arena>>& arenas,
                             Bytes capacity, Bytes device_free) {
  const Unused rest = unused(arenas);
  std::string text = "CUDA out of memory. Tried to allocate " + in_mib(size) + ". ";
  text += "Tenants have " + in_mib(counters.live_bytes) + " of the " +
          in_mib(counters.reserved_bytes) + " that are reserved, of at most " +
          in_mib(capacity) + "; the device has " + in_mib(device_free) + " left. ";
  text += "All free memory was joined: " + in_mib(rest.whole) + " in whole chunks; " +
          in_mib(rest.parts) + " lie in parts of chunks that others use";
  if (counters.active_bytes > counters.live_bytes) {
    text += ", " + in_mib(counters.active_bytes - counters.live_bytes) +
            " are still used by other streams";
  }
  if (rest.of_graphs > 0) {
    text += ", " + in_mib(rest.of_graphs) + " are private to graphs";
  }
  return text + ".";
}

}  // namespace drivetrain
