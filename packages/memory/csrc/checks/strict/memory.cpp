// The virtual memory management of the strict double.
//
//  - an address range is mapped once, in whole allocations, inside one reservation;
//  used
//    after its access was set; unmapped as it was mapped; freed as it was reserved;
//  - the memory of an allocation is free when its last handle is released and the last
//    mapping of it is gone;
//  - page tables are device memory: the first mapping in each 128 MiB of addresses
//  takes
//    64 KiB, and CUDA_ERROR_OUT_OF_MEMORY says that there is none;
//  - while a stream is captured, none of it is called in the usual capture mode.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "../../driver/cuda_api.hpp"
#include "work.hpp"

using namespace strict;
using drivetrain::cuda::AccessDescription;
using drivetrain::cuda::AllocationProperties;

namespace {

constexpr int kFileDescriptor = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
constexpr U64 kFirstAddress = U64{32} << 40;
constexpr U64 kNoAccess = 0, kRead = 1, kReadWrite = 3;

void* pointer(U64 at) { return reinterpret_cast<void*>(at); }

// Addresses ascend from the same one on, so that a seed means one thing; where the
// machine has other plans for these, its own are as good.
void* reserve_addresses(State& now, U64 bytes, U64 alignment) {
  const U64 wanted = now.reserved.empty()
                         ? kFirstAddress
                         : now.reserved.rbegin()->first + now.reserved.rbegin()->second;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const U64 room = bytes + alignment;
  void* raw = mmap(pointer(wanted), room, PROT_NONE, kFlags, -1, 0);
  if (raw == MAP_FAILED) {
    raw = mmap(nullptr, room, PROT_NONE, kFlags, -1, 0);
  }
  if (raw == MAP_FAILED) {
    return raw;
  }
  const U64 begin = reinterpret_cast<U64>(raw);
  const U64 at = (begin + alignment - 1) / alignment * alignment;
  if (at > begin) {
    munmap(raw, at - begin);
  }
  if (begin + alignment > at) {
    munmap(pointer(at + bytes), begin + alignment - at);
  }
  return pointer(at);
}

// A file for memory; its name says of which device that is, for who imports it.
int make_file(int device) {
  char name[32];
  std::snprintf(name, sizeof name, "strict-device-%d", device);
  return memfd_create(name, MFD_CLOEXEC);
}

int device_of_file(int file) {
  char path[64];
  char name[128];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  const auto length = readlink(path, name, sizeof name - 1);
  const std::string start = "/memfd:strict-device-";
  if (length < 0 || std::strncmp(name, start.c_str(), start.size()) != 0) {
    return -1;
  }
  name[length] = '\0';
  return std::atoi(name + start.size());
}

// Finds room in the file of its device, or makes a file.
Result place(State& now, Memory& memory) {
  Device& device = now.devices[static_cast<std::size_t>(memory.device)];
  if (memory.shareable) {
    memory.file = make_file(memory.device);
    const bool made = memory.file >= 0 &&
                      ftruncate(memory.file, static_cast<off_t>(memory.bytes)) == 0;
    return made ? kSuccess : kOutOfMemory;
  }
  if (device.file < 0) {
    device.file = make_file(memory.device);
  }
  memory.file = device.file;
  std::vector<U64>& holes = device.holes[memory.bytes];
  if (!holes.empty()) {
    memory.offset = holes.back();
    holes.pop_back();
    return kSuccess;
  }
  const U64 end = device.next_offset + memory.bytes;
  if (ftruncate(device.file, static_cast<off_t>(end)) != 0) {
    return kOutOfMemory;
  }
  memory.offset = device.next_offset;
  device.next_offset = end;
  return kSuccess;
}

// The memory goes with the last handle and the last mapping.
void settle(State& now, U64 handle) {
  const auto found = now.memory.find(handle);
  if (found == now.memory.end() || found->second.references > 0 ||
      found->second.mappings > 0) {
    return;
  }
  const Memory& memory = found->second;
  Device& device = now.devices[static_cast<std::size_t>(memory.device)];
  if (!memory.imported) {
    device.used -= memory.bytes;
  }
  if (memory.shareable || memory.imported) {
    close(memory.file);
  } else {
    device.holes[memory.bytes].push_back(memory.offset);
  }
  now.memory.erase(found);
}

// The allocation that somebody holds this handle of; null, and an offence, without.
Memory* held(State& now, U64 handle) {
  const auto found = now.memory.find(handle);
  if (found == now.memory.end() || found->second.references == 0) {
    ++now.offences.dead_memory;
    return nullptr;
  }
  return &found->second;
}

bool is_inside_reservation(const State& now, U64 at, U64 bytes) {
  auto reservation = now.reserved.upper_bound(at);
  if (reservation == now.reserved.begin()) {
    return false;
  }
  --reservation;
  return at + bytes <= reservation->first + reservation->second;
}

bool is_unmapped(const State& now, U64 at, U64 bytes) {
  const auto next = now.mapped.lower_bound(at);
  if (next != now.mapped.end() && next->first < at + bytes) {
    return false;
  }
  return next == now.mapped.begin() ||
         std::prev(next)->first + std::prev(next)->second.bytes <= at;
}

// Whether mappings begin and end just where a range does.
bool is_whole(const State& now, U64 at, U64 bytes) {
  U64 end = at;
  for (auto one = now.mapped.find(at); end < at + bytes; ++one) {
    if (one == now.mapped.end() || one->first != end) {
      return false;
    }
    end += one->second.bytes;
  }
  return bytes > 0 && end == at + bytes;
}

void close_mapping(State& now, std::map<U64, Mapping>::iterator which) {
  const U64 at = which->first;
  const Mapping gone = which->second;
  now.mapped.erase(which);
  Memory& memory = now.memory.at(gone.memory);
  if (now.has_bytes && gone.accessible) {
    if (memory.shareable || memory.imported) {
      mmap(pointer(at), gone.bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    } else {
      // Costs a tenth; the file stays as long as the device does.
      mprotect(pointer(at), gone.bytes, PROT_NONE);
    }
  }
  Device& device = now.devices[static_cast<std::size_t>(memory.device)];
  const auto table = device.table_users.find(at / kTableReach);
  if (--table->second == 0) {
    device.table_users.erase(table);
    device.tables -= memory.device == kHost ? 0 : kTableBytes;
  }
  --memory.mappings;
  settle(now, gone.memory);
}

Result set_access(State& now, U64 at, Mapping& mapping, U64 flags) {
  if (now.has_bytes) {
    const Memory& memory = now.memory.at(mapping.memory);
    const int protection = flags == kReadWrite ? PROT_READ | PROT_WRITE
                           : flags == kRead    ? PROT_READ
                                               : PROT_NONE;
    const void* mapped =
        mmap(pointer(at), mapping.bytes, protection, MAP_SHARED | MAP_FIXED,
             memory.file, static_cast<off_t>(memory.offset));
    if (mapped == MAP_FAILED) {
      return kOutOfMemory;
    }
  }
  mapping.accessible = flags != kNoAccess;
  return kSuccess;
}

}  // namespace

STRICT Result cuMemGetAllocationGranularity(std::size_t* bytes,
                                            const AllocationProperties*, int) {
  *bytes = kChunk;
  return kSuccess;
}

STRICT Result cuMemAddressReserve(U64* at, std::size_t bytes, std::size_t alignment,
                                  U64, U64) {
  static Function& called = function("cuMemAddressReserve");
  return call(called, [&](State& now) -> Result {
    if (bytes == 0 || bytes % kChunk != 0 || (alignment & (alignment - 1)) != 0) {
      return kInvalidValue;
    }
    if (is_unsafe(now)) {
      return kCaptureUnsupported;
    }
    if (now.reserved_bytes + bytes > now.address_limit) {
      return kOutOfMemory;
    }
    // Ranges share no page table.
    void* begin = reserve_addresses(now, bytes, std::max<U64>(alignment, kTableReach));
    if (begin == MAP_FAILED) {
      return kOutOfMemory;
    }
    *at = reinterpret_cast<U64>(begin);
    now.reserved[*at] = bytes;
    now.reserved_bytes += bytes;
    return kSuccess;
  });
}

STRICT Result cuMemAddressFree(U64 at, std::size_t bytes) {
  static Function& called = function("cuMemAddressFree");
  return call(called, [&](State& now) -> Result {
    const auto found = now.reserved.find(at);
    if (found == now.reserved.end() || found->second != bytes ||
        !is_unmapped(now, at, bytes)) {
      return kInvalidValue;
    }
    if (is_unsafe(now)) {
      return kCaptureUnsupported;
    }
    munmap(pointer(at), bytes);
    now.reserved_bytes -= bytes;
    now.reserved.erase(found);
    return kSuccess;
  });
}

STRICT Result cuMemCreate(U64* handle, std::size_t bytes,
                          const AllocationProperties* properties, U64) {
  static Function& called = function("cuMemCreate");
  return call(called, [&](State& now) -> Result {
    if (bytes == 0 || bytes % kChunk != 0 || properties->type != 1) {
      return kInvalidValue;
    }
    Memory memory;
    const bool on_device = properties->location.type == 1;
    memory.device = on_device ? properties->location.id : kHost;
    if (on_device && (memory.device < 0 || memory.device >= now.num_devices)) {
      return kInvalidDevice;
    }
    if (is_unsafe(now)) {
      return kCaptureUnsupported;
    }
    if (on_device && free_bytes(now, memory.device) < bytes) {
      return kOutOfMemory;
    }
    memory.bytes = bytes;
    memory.shareable = (properties->handle_types & kFileDescriptor) != 0;
    if (const Result refused = place(now, memory)) {
      return refused;
    }
    now.devices[static_cast<std::size_t>(memory.device)].used += bytes;
    *handle = now.next++;
    now.memory[*handle] = memory;
    return kSuccess;
  });
}

STRICT Result cuMemRelease(U64 handle) {
  static Function& called = function("cuMemRelease");
  return call(called, [&](State& now) -> Result {
    Memory* memory = held(now, handle);
    if (memory == nullptr) {
      return kInvalidValue;
    }
    if (is_unsafe(now)) {
      return kCaptureUnsupported;
    }
    --memory->references;
    settle(now, handle);
    return kSuccess;
  });
}

STRICT Result cuMemMap(U64 at, std::size_t bytes, std::size_t offset, U64 handle, U64) {
  static Function& called = function("cuMemMap");
  return call(called, [&](State& now) -> Result {
    Memory* memory = held(now, handle);
    if (memory == nullptr || offset != 0 || bytes != memory->bytes ||
        at % kChunk != 0 || !is_inside_reservation(now, at, bytes) ||
        !is_unmapped(now, at, bytes)) {
      return kInvalidValue;
    }
    if (is_unsafe(now)) {
      return kCaptureUnsupported;
    }
    Device& device = now.devices[static_cast<std::size_t>(memory->device)];
    if (device.table_users.count(at / kTableReach) == 0 && memory->device != kHost) {
      if (free_bytes(now, memory->device) < kTableBytes) {
        return kOutOfMemory;
      }
      device.tables += kTableBytes;
    }
    ++device.table_users[at / kTableReach];
    ++memory->mappings;
    now.mapped[at] = {bytes, handle, false};
    return kSuccess;
  });
}

STRICT Result cuMemUnmap(U64 at, std::size_t bytes) {
  static Function& called = function("cuMemUnmap");
  return call(called, [&](State& now) -> Result {
    if (!is_whole(now, at, bytes)) {
      return kInvalidValue;
    }
    if (is_unsafe(now)) {
      return kCaptureUnsupported;
    }
    for (U64 next = at; next < at + bytes;) {
      const auto which = now.mapped.find(next);
      next += which->second.bytes;
      close_mapping(now, which);
    }
    return kSuccess;
  });
}

STRICT Result cuMemSetAccess(U64 at, std::size_t bytes, const AccessDescription* access,
                             std::size_t count) {
  static Function& called = function("cuMemSetAccess");
  return call(called, [&](State& now) -> Result {
    if (count == 0 || !is_whole(now, at, bytes)) {
      return kInvalidValue;
    }
    if (is_unsafe(now)) {
      return kCaptureUnsupported;
    }
    for (U64 next = at; next < at + bytes;) {
      Mapping& mapping = now.mapped.at(next);
      const auto flags = static_cast<U64>(access[0].flags);
      if (const Result refused = set_access(now, next, mapping, flags)) {
        return refused;
      }
      next += mapping.bytes;
    }
    return kSuccess;
  });
}

STRICT Result cuMemGetAccess(U64* flags, const void*, U64 at) {
  return locked([&](State& now) -> Result {
    const Mapping* mapping = mapping_at(now, at);
    if (mapping == nullptr) {
      return kInvalidValue;
    }
    *flags = mapping->accessible ? kReadWrite : kNoAccess;
    return kSuccess;
  });
}

STRICT Result cuMemGetAllocationPropertiesFromHandle(AllocationProperties* properties,
                                                     U64 handle) {
  static Function& called = function("cuMemGetAllocationPropertiesFromHandle");
  return call(called, [&](State& now) -> Result {
    const Memory* memory = held(now, handle);
    if (memory == nullptr) {
      return kInvalidValue;
    }
    *properties = {};
    properties->type = 1;
    properties->handle_types = memory->shareable ? kFileDescriptor : 0;
    properties->location = {memory->device == kHost ? 2 : 1, memory->device};
    return kSuccess;
  });
}

// Handles that are handed on ---------------------------------------------------------

// The handle of what is mapped at an address; to be released once more for this.
STRICT Result cuMemRetainAllocationHandle(U64* handle, void* at) {
  static Function& called = function("cuMemRetainAllocationHandle");
  return call(called, [&](State& now) -> Result {
    const Mapping* mapping = mapping_at(now, reinterpret_cast<U64>(at));
    if (mapping == nullptr) {
      return kInvalidValue;
    }
    *handle = mapping->memory;
    ++now.memory.at(mapping->memory).references;
    return kSuccess;
  });
}

// Only what was made for it has a file descriptor; who gets one closes it.
STRICT Result cuMemExportToShareableHandle(void* shared, U64 handle, int type, U64) {
  static Function& called = function("cuMemExportToShareableHandle");
  return call(called, [&](State& now) -> Result {
    const Memory* memory = held(now, handle);
    if (memory == nullptr || type != kFileDescriptor || !memory->shareable) {
      return kInvalidValue;
    }
    const int file = fcntl(memory->file, F_DUPFD_CLOEXEC, 0);
    if (file < 0) {
      return kOutOfMemory;
    }
    *static_cast<int*>(shared) = file;
    return kSuccess;
  });
}

// The descriptor stays the caller's. The memory is counted where it was made.
STRICT Result cuMemImportFromShareableHandle(U64* handle, void* shared, int type) {
  static Function& called = function("cuMemImportFromShareableHandle");
  return call(called, [&](State& now) -> Result {
    const int given = static_cast<int>(reinterpret_cast<std::intptr_t>(shared));
    struct stat about{};
    if (type != kFileDescriptor || fstat(given, &about) != 0 ||
        device_of_file(given) < 0) {
      return kInvalidValue;
    }
    Memory memory;
    memory.device = device_of_file(given);
    memory.bytes = static_cast<U64>(about.st_size);
    memory.file = fcntl(given, F_DUPFD_CLOEXEC, 0);
    memory.shareable = true;
    memory.imported = true;
    if (memory.file < 0) {
      return kOutOfMemory;
    }
    *handle = now.next++;
    now.memory[*handle] = memory;
    return kSuccess;
  });
}
