// Random operations on real memory with streams that are threads: what a tenant wrote
// is what it reads, byte for byte, through every alias.
//
// Usage: check_contents OPERATIONS [SEED [DELAY_US]]

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "../driver/host_driver.hpp"
#include "workload.hpp"

using namespace drivetrain;

namespace {

std::atomic<std::uint64_t> wrong{0};

void write(const Tenant& tenant) {
  std::memset(reinterpret_cast<void*>(tenant.at), static_cast<int>(tenant.name % 251),
              tenant.size);
}

void read(const Tenant& tenant) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(tenant.at);
  const auto value = static_cast<unsigned char>(tenant.name % 251);
  for (Bytes i = 0; i < tenant.size; ++i) {
    if (bytes[i] != value) {
      ++wrong;
      return;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t operations =
      argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000;
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const unsigned delay_us =
      argc > 3 ? static_cast<unsigned>(std::strtoul(argv[3], nullptr, 10)) : 0;
  const Bytes chunk = 16 * 1024;
  const Bytes capacity = 256 * chunk;
  HostDriver driver(capacity, chunk, delay_us, seed);
  {
    Allocator allocator(driver, Options{});
    std::unordered_map<std::uint64_t, bool> written;
    run_random(
        allocator, capacity, chunk, 4, operations, seed,
        [&](const Tenant& tenant, Stream stream) {
          if (stream == ~Stream{0}) {
            driver.run(tenant.stream, [tenant] { read(tenant); });
          } else if (stream == tenant.stream && !written[tenant.name]) {
            written[tenant.name] = true;
            driver.run(stream, [tenant] { write(tenant); });
          } else {
            // Another stream reads only after the first one wrote.
            const Event event = driver.record(tenant.stream);
            driver.wait(stream, event);
            driver.forget(event);
            driver.run(stream, [tenant] { read(tenant); });
          }
        },
        [&](const Tenant& tenant) {
          driver.run(tenant.stream, [tenant] { read(tenant); });
          written.erase(tenant.name);
        });
    for (Stream stream = 0; stream < 4; ++stream) {
      driver.drain(stream);
    }
  }
  std::printf("{\"operations\": %llu, \"wrong\": %llu}\n",
              static_cast<unsigned long long>(operations),
              static_cast<unsigned long long>(wrong.load()));
  return wrong == 0 ? 0 : 1;
}
