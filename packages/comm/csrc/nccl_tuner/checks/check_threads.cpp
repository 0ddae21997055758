// Eight communicators of different sizes, each in a thread of its own, as a process has
// them: `check_threads TABLE NUM_CALLS`. Compiled together with the tuner, so that
// ThreadSanitizer sees both. The table must have, for 2, 4, ... 16 ranks, a rule for
// all-reduces below 1 MiB with as many channels as there are ranks.

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "nccl.hpp"

extern "C" const Tuner ncclTunerPlugin_v5;

namespace {

constexpr std::size_t num_communicators = 8;
constexpr std::size_t decided_bytes = std::size_t{1} << 20;

std::atomic<int> num_messages{0};
std::atomic<int> num_errors{0};

void log(drivetrain::nccl::LogLevel, unsigned long, const char*, int, const char*,
         ...) {
  ++num_messages;
}

void fail(const char* what, std::size_t ranks) {
  std::printf("%s, with %zu ranks\n", what, ranks);
  ++num_errors;
}

void call(void* context, std::size_t ranks, std::size_t bytes) {
  Costs costs;
  costs.fill(5);
  int channels = 0;
  ncclTunerPlugin_v5.get_coll_info(context, all_reduce, bytes, 1,
                                   reinterpret_cast<float**>(costs.data()),
                                   num_algorithms, num_protocols, 0, &channels);
  const int wanted = bytes < decided_bytes ? static_cast<int>(ranks) : 0;
  if (channels != wanted) fail("a communicator got the channels of another", ranks);
}

void communicate(std::size_t ranks, std::size_t num_calls) {
  void* context = nullptr;
  ncclTunerPlugin_v5.init(&context, ranks, ranks, 1, log, nullptr, nullptr);
  if (!context) return fail("the table was refused", ranks);
  // Two threads of one communicator: NCCL does not promise that there is one only.
  std::thread other([=] {
    for (std::size_t i = 0; i < num_calls; ++i)
      call(context, ranks, 4093 * i % (2 * decided_bytes));
  });
  for (std::size_t i = 0; i < num_calls; ++i)
    call(context, ranks, 8191 * i % (2 * decided_bytes));
  other.join();
  ncclTunerPlugin_v5.finalize(context);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  setenv("DRIVETRAIN_COMM_NCCL_TABLE", argv[1], 1);
  const std::size_t num_calls = std::strtoull(argv[2], nullptr, 10);
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i <= num_communicators; ++i)
    threads.emplace_back(communicate, 2 * i, num_calls);
  for (std::thread& thread : threads) thread.join();
  std::printf("%d messages, %d errors\n", num_messages.load(), num_errors.load());
  return num_errors.load() == 0 ? 0 : 1;
}
