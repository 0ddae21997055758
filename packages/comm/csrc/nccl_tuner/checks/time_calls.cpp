// What a decision costs: `time_calls LIBRARY RANKS NODES MOST_BYTES` prints, in
// nanoseconds, the median of batches of calls with all sizes in no order, and of the
// same calls to a function that does nothing.

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "nccl.hpp"

namespace {

constexpr std::size_t num_batches = 201;
constexpr std::size_t batch_calls = 4096;

using Call = decltype(Tuner::get_coll_info);

drivetrain::nccl::Result do_nothing(void*, int, std::size_t, int, float**, int, int,
                                    int, int*) {
  return drivetrain::nccl::Result::success;
}

struct Times {
  double median_ns;
  double worst_ns;
};

// The costs and the channels are as they were before every call, like NCCL's.
Times measure(Call call, void* context, const std::vector<std::size_t>& sizes) {
  volatile Call opaque = call;
  std::vector<double> times_ns;
  for (std::size_t batch = 0; batch < num_batches; ++batch) {
    const auto begin = std::chrono::steady_clock::now();
    for (const std::size_t bytes : sizes) {
      Costs costs;
      costs.fill(5);
      int channels = 0;
      opaque(context, all_reduce, bytes, 1, reinterpret_cast<float**>(costs.data()),
             num_algorithms, num_protocols, 0, &channels);
    }
    const std::chrono::duration<double, std::nano> taken =
        std::chrono::steady_clock::now() - begin;
    times_ns.push_back(taken.count() / static_cast<double>(sizes.size()));
  }
  std::sort(times_ns.begin(), times_ns.end());
  return {times_ns[num_batches / 2], times_ns.back()};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  const auto* tuner =
      library ? static_cast<const Tuner*>(dlsym(library, "ncclTunerPlugin_v5"))
              : nullptr;
  if (!tuner) {
    std::printf("%s\n", dlerror());
    return 1;
  }
  void* context = nullptr;
  tuner->init(&context, 0, std::strtoull(argv[2], nullptr, 10),
              std::strtoull(argv[3], nullptr, 10), nullptr, nullptr, nullptr);
  if (!context) {
    std::printf("the table was refused\n");
    return 1;
  }
  std::mt19937_64 random(7);
  std::uniform_int_distribution<std::size_t> any_size(
      0, std::strtoull(argv[4], nullptr, 10));
  std::vector<std::size_t> sizes(batch_calls);
  for (std::size_t& bytes : sizes) bytes = any_size(random);
  const Times empty = measure(do_nothing, nullptr, sizes);
  const Times ours = measure(tuner->get_coll_info, context, sizes);
  tuner->finalize(context);
  std::printf("{\"call_ns\": %.1f, \"worst_batch_ns\": %.1f, \"empty_ns\": %.1f}\n",
              ours.median_ns, ours.worst_ns, empty.median_ns);
  return 0;
}
