#include "settings.hpp"

#include <sys/mman.h>

#include <chrono>
#include <thread>

namespace sim {
namespace {

Settings& mutable_settings() {
  static Settings& instance = *new Settings;
  return instance;
}

// Whether the address space has room for the memory of all devices, mapped twice.
bool can_be_mapped(const Settings& wanted) {
  const std::size_t size = 2 * wanted.memory_bytes * wanted.devices;
  void* address = mmap(nullptr, size, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return false;
  munmap(address, size);
  return true;
}

}  // namespace

const Settings& settings() { return mutable_settings(); }

Delays& delays() {
  static Delays& instance = *new Delays;
  return instance;
}

void configure(const Settings& wanted) {
  mutable_settings() = wanted;
  if (!can_be_mapped(wanted)) mutable_settings().devices = 0;
}

void sleep_us(std::int64_t duration_us) {
  if (duration_us > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(duration_us));
  }
}

}  // namespace sim
