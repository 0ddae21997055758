// Random operations on several streams, for the checks.

#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "../allocator.hpp"
#include "../error.hpp"

namespace drivetrain {

struct Tenant {
  Address at;
  Bytes size;
  Stream stream;
  std::uint64_t name;
};

// Allocates, uses, shares and frees at random, so that memory is nearly always short.
template <class Use, class Check>
void run_random(Allocator& allocator, Bytes capacity, Bytes chunk, unsigned streams,
                std::uint64_t operations, std::uint64_t seed, Use use, Check check) {
  std::mt19937_64 random(seed);
  std::vector<Tenant> live;
  std::uint64_t name = 0;
  const auto draw_size = [&] {
    // Small ones, some of a few chunks, seldom a large one.
    switch (random() % 8) {
      case 0:
        return 1 + random() % (capacity / 8);
      case 1:
      case 2:
        return 1 + random() % (8 * chunk);
      default:
        return 1 + random() % chunk;
    }
  };
  const auto drop = [&](std::size_t index) {
    check(live[index]);
    allocator.free(live[index].at);
    live[index] = live.back();
    live.pop_back();
  };
  for (std::uint64_t i = 0; i < operations; ++i) {
    const unsigned kind = random() % 16;
    if (kind < 7 || live.empty()) {
      const Stream stream = random() % streams;
      const Bytes size = draw_size();
      try {
        live.push_back({allocator.allocate(size, stream), size, stream, ++name});
        use(live.back(), stream);
      } catch (const OutOfMemory&) {
        for (int n = 0; n < 4 && !live.empty(); ++n) {
          drop(random() % live.size());
        }
      }
    } else if (kind < 13) {
      drop(random() % live.size());
    } else if (kind < 15) {
      use(live[random() % live.size()], ~Stream{0});
    } else {
      const Tenant& tenant = live[random() % live.size()];
      const Stream other = random() % streams;
      allocator.record_stream(tenant.at, other);
      use(tenant, other);
    }
    if (random() % 200'000 == 0) {
      allocator.trim();
    }
  }
  while (!live.empty()) {
    drop(live.size() - 1);
  }
}

}  // namespace drivetrain
