// What an allocation and a free cost where a free block fits, beside PyTorch's way of
// keeping them.
//
// Usage: bench_hit_path

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "../allocator.hpp"
#include "../driver/host_driver.hpp"
#include "../replay/native_model.hpp"

using namespace drivetrain;

namespace {

constexpr int kFree = 2000;
constexpr int kPairs = 200'000;
constexpr int kTurns = 25;
// Between turns: a machine that others use is slow for seconds at a time.
constexpr auto kRest = std::chrono::milliseconds(100);
// Pairs timed together, since reading a clock costs as much as half a pair.
constexpr int kTogether = 16;

std::vector<Bytes> sizes(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Bytes> found(kFree);
  for (Bytes& size : found) {
    size = kUnit * (1 + random() % 4000);
  }
  return found;
}

using Clock = std::chrono::steady_clock;
using Nanoseconds = std::chrono::duration<double, std::nano>;

// What reading the clock twice takes, which is not the pairs' own.
double clock_ns() {
  std::vector<double> found;
  for (int i = 0; i < 10'000; ++i) {
    const auto begin = Clock::now();
    found.push_back(Nanoseconds(Clock::now() - begin).count());
  }
  std::sort(found.begin(), found.end());
  return found[found.size() / 2];
}

template <class Allocate, class Free>
std::vector<double> times(const std::vector<Bytes>& asked, Allocate allocate,
                          Free free) {
  const double clock = clock_ns();
  std::vector<double> found;
  std::size_t next = 0;
  for (int i = 0; i < kPairs / kTogether; ++i) {
    const auto begin = Clock::now();
    for (int k = 0; k < kTogether; ++k) {
      const auto block = allocate(asked[next]);
      next = next + 1 == asked.size() ? 0 : next + 1;
      free(block);
    }
    const Nanoseconds took = Clock::now() - begin;
    found.push_back((took.count() - clock) / kTogether);
  }
  std::sort(found.begin(), found.end());
  return found;
}

double at(const std::vector<double>& sorted, double part) {
  return sorted[static_cast<std::size_t>(part *
                                         static_cast<double>(sorted.size() - 1))];
}

}  // namespace

int main() {
  const Bytes capacity = Bytes{64} << 30;
  HostDriver driver(capacity, Bytes{2} << 20);
  Allocator allocator(driver, Options{});
  NativeModel native(capacity);
  // Every second block stays, so that as many free ones lie between them.
  std::vector<Address> ours;
  std::uint32_t id = 1;
  for (const Bytes size : sizes(1)) {
    ours.push_back(allocator.allocate(size, 0));
    allocator.allocate(kUnit, 0);
    allocator.allocate((Bytes{1} << 20) + kUnit, 0);
    native.allocate(id++, size, 0);
    native.allocate(id++, kUnit, 0);
    native.allocate(id++, (Bytes{1} << 20) + kUnit, 0);
  }
  for (int i = 0; i < kFree; ++i) {
    allocator.free(ours[static_cast<std::size_t>(i)]);
    native.free(static_cast<std::uint32_t>(3 * i + 1));
  }
  const std::vector<Bytes> asked = sizes(2);
  std::vector<double> medians, tails, theirs, ratios;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto mine = times(
        asked, [&](Bytes size) { return allocator.allocate(size, 0); },
        [&](Address block) { allocator.free(block); });
    const auto other = times(
        asked,
        [&](Bytes size) {
          native.allocate(0, size, 0);
          return 0;
        },
        [&](int) { native.free(0); });
    medians.push_back(at(mine, 0.5));
    tails.push_back(at(mine, 0.99));
    theirs.push_back(at(other, 0.5));
    ratios.push_back(theirs.back() / medians.back());
    std::this_thread::sleep_for(kRest);
  }
  std::sort(medians.begin(), medians.end());
  std::sort(tails.begin(), tails.end());
  std::sort(theirs.begin(), theirs.end());
  std::sort(ratios.begin(), ratios.end());
  std::printf(
      "{\"median_ns\": %.1f, \"p99_ns\": %.1f, \"native_median_ns\": %.1f, "
      "\"ratio\": %.2f}\n",
      medians[kTurns / 2], tails[kTurns / 2], theirs[kTurns / 2], ratios[kTurns / 2]);
  return 0;
}
