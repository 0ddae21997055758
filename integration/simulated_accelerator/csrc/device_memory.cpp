#include "device_memory.hpp"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "settings.hpp"
#include "streams.hpp"

namespace sim {
namespace {

struct Mapping {
  std::once_flag mapped;
  std::atomic<char*> device{nullptr};
  char* shadow = nullptr;
};

std::array<Mapping, kMaxDevices>& all() {
  static auto& instance = *new std::array<Mapping, kMaxDevices>;
  return instance;
}

char* map(int file, int protection) {
  void* address = mmap(nullptr, settings().memory_bytes, protection,
                       MAP_SHARED | MAP_NORESERVE, file, 0);
  TORCH_CHECK(address != MAP_FAILED, "cannot map ", settings().memory_bytes,
              " bytes for a simulated device: ", std::strerror(errno));
  return static_cast<char*>(address);
}

void map_device(int device, Mapping& mapping) {
  initialize(device);
  const std::string name = "sim" + std::to_string(device);
  const int file = memfd_create(name.c_str(), MFD_CLOEXEC);
  TORCH_CHECK(file >= 0 && ftruncate(file, settings().memory_bytes) == 0,
              "cannot make ", settings().memory_bytes,
              " bytes for a simulated device: ", std::strerror(errno));
  mapping.shadow = map(file, PROT_READ | PROT_WRITE);
  mapping.device = map(file, settings().readable ? PROT_READ : PROT_NONE);
  close(file);
}

bool holds(const Mapping& mapping, const void* address) {
  const char* base = mapping.device.load(std::memory_order_acquire);
  return base != nullptr && address >= base && address < base + settings().memory_bytes;
}

}  // namespace

char* device_base(int device) {
  check_index(device);
  Mapping& mapping = all()[device];
  std::call_once(mapping.mapped, [&] { map_device(device, mapping); });
  return mapping.device;
}

void* device_to_shadow(int device, const void* address) {
  const Mapping& mapping = all()[device];
  return mapping.shadow + (static_cast<const char*>(address) - mapping.device);
}

void* to_shadow(const void* address) {
  const int device = device_of(address);
  if (device < 0) return const_cast<void*>(address);
  return device_to_shadow(device, address);
}

int device_of(const void* address) {
  for (int device = 0; device < device_count(); ++device) {
    if (holds(all()[device], address)) return device;
  }
  return -1;
}

void discard_pages(int device, std::size_t offset, std::size_t size) {
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t begin = (offset + page - 1) / page * page;
  const std::size_t end = (offset + size) / page * page;
  if (begin < end) madvise(all()[device].shadow + begin, end - begin, MADV_REMOVE);
}

}  // namespace sim
