// Millions of random operations on streams that are vector clocks: no tenant before the
// one before it is done, no unmapping of what is used.
//
// Usage: check_races OPERATIONS [SEED]

#include <cstdio>
#include <cstdlib>

#include "clock_driver.hpp"
#include "workload.hpp"

using namespace drivetrain;

int main(int argc, char** argv) {
  const std::uint64_t operations =
      argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100'000;
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const Bytes chunk = 16 * 1024;
  const std::uint64_t chunks = 256;
  ClockDriver driver(chunks, chunk, seed);
  Counters counters;
  {
    Options options;
    options.headroom = seed % 2 == 0 ? 0.02 : -1.0;
    // Few, so that mappings are evicted as well.
    options.mapped_bytes = 3 * chunks * chunk;
    Allocator allocator(driver, options);
    run_random(
        allocator, chunks * chunk, chunk, kClockStreams, operations, seed,
        [&](const Tenant& tenant, Stream stream) {
          const Stream on = stream == ~Stream{0} ? tenant.stream : stream;
          if (on != tenant.stream) {
            // As every program must: what is allocated on one stream is ready there.
            const Event ready = driver.record(tenant.stream);
            driver.wait(on, ready);
            driver.forget(ready);
          }
          driver.use(on, tenant.at, tenant.size, tenant.name);
        },
        [](const Tenant&) {});
    allocator.trim();
    counters = allocator.counters();
  }
  std::printf(
      "{\"operations\": %llu, \"complaints\": %llu, \"first\": \"%s\", "
      "\"live_bytes\": %llu, \"reserved_bytes\": %llu, \"stolen\": %llu, "
      "\"stream_waits\": %llu, \"returned\": %llu, \"unmapped\": %llu, "
      "\"out_of_memory\": %llu}\n",
      static_cast<unsigned long long>(operations),
      static_cast<unsigned long long>(driver.complaints()),
      driver.first_complaint().c_str(),
      static_cast<unsigned long long>(counters.live_bytes),
      static_cast<unsigned long long>(counters.reserved_bytes),
      static_cast<unsigned long long>(counters.stolen),
      static_cast<unsigned long long>(counters.stream_waits),
      static_cast<unsigned long long>(counters.returned),
      static_cast<unsigned long long>(counters.unmapped),
      static_cast<unsigned long long>(counters.out_of_memory));
  return driver.complaints() == 0 && counters.live_bytes == 0 &&
                 counters.reserved_bytes == 0
             ? 0
             : 1;
}
