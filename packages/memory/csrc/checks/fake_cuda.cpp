// A CUDA driver made of the machine's own memory, so that what calls the real one runs
// where there is none. It holds callers to the rules that a GPU would: a mapping is of
// no use before its access is set, a stream that is captured gives no events, a context
// is current while events are made. `fake_cuda_fail` lets a function fail.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "../driver/cuda_api.hpp"
#include "../driver/host_driver.hpp"
#include "../error.hpp"

#define FAKE extern "C" __attribute__((visibility("default")))

namespace {

using namespace drivetrain;
using namespace drivetrain::cuda;

constexpr Bytes kChunk = Bytes{2} << 20;
constexpr Result kInvalidValue = 1;
constexpr Result kInvalidContext = 201;
constexpr Result kCaptureUnsupported = 900;

struct Mapping {
  AllocationHandle handle;
  bool accessible;
};

struct Failure {
  int after;
  Result result;
  int times;
};

struct State {
  std::mutex mutex;
  Bytes total = Bytes{256} << 20;
  int devices = 1;
  int virtual_memory = 1;
  std::unique_ptr<HostDriver> host;
  std::map<DevicePointer, Mapping> mapped;
  std::map<DevicePointer, Bytes> reserved;
  std::set<AllocationHandle> created;
  std::set<StreamHandle> captured;
  std::map<EventHandle, Event> events;
  std::uintptr_t next_event = 1;
  std::map<std::string, int> calls;
  std::map<std::string, Failure> failures;

  HostDriver& device() {
    if (host == nullptr) {
      host = std::make_unique<HostDriver>(total, kChunk);
    }
    return *host;
  }

  // Counts a call; what it is to fail with, if it is.
  Result begin(const char* function) {
    ++calls[function];
    const auto found = failures.find(function);
    if (found == failures.end() || found->second.times <= 0 ||
        found->second.after-- > 0) {
      return kSuccess;
    }
    --found->second.times;
    return found->second.result;
  }
};

State& state() {
  static auto* const only = new State;
  return *only;
}

thread_local int contexts = 0;

// Runs f, unless the function is to fail now; what f throws is a refusal.
template <class F>
Result call(const char* function, F f) {
  State& now = state();
  const std::lock_guard<std::mutex> lock(now.mutex);
  if (const Result result = now.begin(function)) {
    return result;
  }
  try {
    return f(now);
  } catch (const Error&) {
    return kInvalidValue;
  }
}

Stream number(StreamHandle stream) { return reinterpret_cast<Stream>(stream); }

}  // namespace

// What tests set and ask.

FAKE void fake_cuda_configure(std::uint64_t total, int devices, int virtual_memory) {
  State& now = state();
  const std::lock_guard<std::mutex> lock(now.mutex);
  now.total = total;
  now.devices = devices;
  now.virtual_memory = virtual_memory;
}

FAKE void fake_cuda_fail(const char* function, int after, Result result, int times) {
  State& now = state();
  const std::lock_guard<std::mutex> lock(now.mutex);
  now.failures[function] = {after, result, times};
}

FAKE void fake_cuda_capture(StreamHandle stream, int on) {
  State& now = state();
  const std::lock_guard<std::mutex> lock(now.mutex);
  if (on != 0) {
    now.captured.insert(stream);
  } else {
    now.captured.erase(stream);
  }
}

FAKE int fake_cuda_calls(const char* function) {
  State& now = state();
  const std::lock_guard<std::mutex> lock(now.mutex);
  return now.calls[function];
}

// How many chunks, mappings and reservations there are, one of 0, 1 and 2.
FAKE std::uint64_t fake_cuda_count(int what) {
  State& now = state();
  const std::lock_guard<std::mutex> lock(now.mutex);
  const std::size_t counts[] = {now.created.size(), now.mapped.size(),
                                now.reserved.size()};
  return counts[what];
}

// Whether every page of a range is mapped and accessible.
FAKE int fake_cuda_usable(DevicePointer at, std::uint64_t size) {
  State& now = state();
  const std::lock_guard<std::mutex> lock(now.mutex);
  for (DevicePointer page = at / kChunk * kChunk; page < at + size; page += kChunk) {
    const auto found = now.mapped.find(page);
    if (found == now.mapped.end() || !found->second.accessible) {
      return 0;
    }
  }
  return 1;
}

// The driver.

FAKE Result cuInit(unsigned) {
  return call("cuInit", [](State&) { return kSuccess; });
}

FAKE Result cuGetErrorName(Result result, const char** name) {
  *name = result == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return kSuccess;
}

FAKE Result cuDeviceGet(Device* device, int number) {
  return call("cuDeviceGet", [&](State& now) {
    *device = number;
    return number >= 0 && number < now.devices ? kSuccess : kInvalidValue;
  });
}

FAKE Result cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", [&](State& now) {
    *count = now.devices;
    return kSuccess;
  });
}

FAKE Result cuDeviceGetAttribute(int* value, int attribute, Device) {
  return call("cuDeviceGetAttribute", [&](State& now) {
    *value = attribute == kVirtualMemorySupported ? now.virtual_memory : 0;
    return kSuccess;
  });
}

FAKE Result cuDeviceTotalMem_v2(std::size_t* bytes, Device) {
  return call("cuDeviceTotalMem", [&](State& now) {
    *bytes = now.total;
    return kSuccess;
  });
}

FAKE Result cuDeviceCanAccessPeer(int* reachable, Device, Device) {
  return call("cuDeviceCanAccessPeer", [&](State&) {
    *reachable = 1;
    return kSuccess;
  });
}

FAKE Result cuDevicePrimaryCtxRetain(Context* context, Device) {
  return call("cuDevicePrimaryCtxRetain", [&](State& now) {
    *context = &now;
    return kSuccess;
  });
}

FAKE Result cuCtxPushCurrent_v2(Context) {
  ++contexts;
  return kSuccess;
}

FAKE Result cuCtxPopCurrent_v2(Context*) { return --contexts < 0 ? 1 : kSuccess; }

FAKE Result cuCtxSynchronize() {
  return call("cuCtxSynchronize", [](State&) { return kSuccess; });
}

FAKE Result cuThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int current = 0;
  std::swap(*mode, current);
  return kSuccess;
}

FAKE Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return call("cuMemGetInfo", [&](State& now) {
    *free = now.device().free_bytes();
    *total = now.total;
    return kSuccess;
  });
}

FAKE Result cuMemGetAllocationGranularity(std::size_t* bytes,
                                          const AllocationProperties*, int) {
  *bytes = kChunk;
  return kSuccess;
}

FAKE Result cuMemAddressReserve(DevicePointer* at, std::size_t bytes, std::size_t,
                                DevicePointer wish, unsigned long long) {
  return call("cuMemAddressReserve", [&](State& now) {
    const bool granted = wish != 0 && now.device().extend(wish, bytes);
    *at = granted ? wish : now.device().reserve(bytes);
    now.reserved[*at] = bytes;
    return kSuccess;
  });
}

FAKE Result cuMemAddressFree(DevicePointer at, std::size_t bytes) {
  return call("cuMemAddressFree", [&](State& now) {
    const auto found = now.mapped.lower_bound(at);
    const bool in_use = found != now.mapped.end() && found->first < at + bytes;
    if (in_use || now.reserved[at] != bytes) {
      return kInvalidValue;
    }
    now.device().unreserve(at, bytes);
    now.reserved.erase(at);
    return kSuccess;
  });
}

FAKE Result cuMemCreate(AllocationHandle* handle, std::size_t bytes,
                        const AllocationProperties* properties, unsigned long long) {
  return call("cuMemCreate", [&](State& now) {
    Handle made = 0;
    if (bytes != kChunk || properties->type != kPinned) {
      return kInvalidValue;
    }
    if (!now.device().create(&made)) {
      return kOutOfMemory;
    }
    *handle = made;
    now.created.insert(made);
    return kSuccess;
  });
}

FAKE Result cuMemRelease(AllocationHandle handle) {
  return call("cuMemRelease", [&](State& now) {
    if (now.created.erase(handle) == 0) {
      return kInvalidValue;
    }
    now.device().destroy(handle);
    return kSuccess;
  });
}

FAKE Result cuMemMap(DevicePointer at, std::size_t bytes, std::size_t offset,
                     AllocationHandle handle, unsigned long long) {
  return call("cuMemMap", [&](State& now) {
    const bool known = now.created.count(handle) > 0 && now.mapped.count(at) == 0;
    if (bytes != kChunk || offset != 0 || !known) {
      return kInvalidValue;
    }
    const Handle mapped = handle;
    now.device().map(at, &mapped, 1);
    now.mapped[at] = {handle, false};
    return kSuccess;
  });
}

FAKE Result cuMemUnmap(DevicePointer at, std::size_t bytes) {
  return call("cuMemUnmap", [&](State& now) {
    if (bytes != kChunk || now.mapped.erase(at) == 0) {
      return kInvalidValue;
    }
    now.device().unmap(at, 1);
    return kSuccess;
  });
}

FAKE Result cuMemSetAccess(DevicePointer at, std::size_t bytes,
                           const AccessDescription* access, std::size_t count) {
  return call("cuMemSetAccess", [&](State& now) {
    const bool writable = std::all_of(access, access + count, [](const auto& one) {
      return one.flags == kReadWrite && one.location.type == kOnDevice;
    });
    for (DevicePointer page = at; page < at + bytes; page += kChunk) {
      const auto found = now.mapped.find(page);
      if (found == now.mapped.end() || !writable) {
        return kInvalidValue;
      }
      found->second.accessible = true;
    }
    return kSuccess;
  });
}

FAKE Result cuMemAllocHost_v2(void** memory, std::size_t bytes) {
  return call("cuMemAllocHost", [&](State&) {
    *memory = std::malloc(bytes);
    return *memory == nullptr ? kOutOfMemory : kSuccess;
  });
}

FAKE Result cuMemFreeHost(void* memory) {
  return call("cuMemFreeHost", [&](State&) {
    std::free(memory);
    return kSuccess;
  });
}

FAKE Result cuMemcpyDtoH_v2(void* to, DevicePointer from, std::size_t bytes) {
  return call("cuMemcpyDtoH", [&](State&) {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return kSuccess;
  });
}

FAKE Result cuMemcpyHtoD_v2(DevicePointer to, const void* from, std::size_t bytes) {
  return call("cuMemcpyHtoD", [&](State&) {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return kSuccess;
  });
}

FAKE Result cuEventCreate(EventHandle* event, unsigned) {
  return call("cuEventCreate", [&](State& now) {
    *event = reinterpret_cast<EventHandle>(now.next_event++);
    return contexts > 0 ? kSuccess : kInvalidContext;
  });
}

FAKE Result cuEventDestroy_v2(EventHandle event) {
  return call("cuEventDestroy", [&](State& now) {
    now.events.erase(event);
    return kSuccess;
  });
}

FAKE Result cuStreamGetCtx(StreamHandle, Context* context) {
  return call("cuStreamGetCtx", [&](State&) {
    *context = nullptr;
    return kInvalidHandle;
  });
}

FAKE Result cuEventRecord(EventHandle event, StreamHandle stream) {
  return call("cuEventRecord", [&](State& now) {
    if (now.captured.count(stream) > 0) {
      return kCaptureUnsupported;
    }
    now.events[event] = now.device().record(number(stream));
    return kSuccess;
  });
}

FAKE Result cuEventQuery(EventHandle event) {
  return call("cuEventQuery", [&](State& now) {
    return now.device().done(now.events.at(event)) ? kSuccess : kNotReady;
  });
}

FAKE Result cuEventSynchronize(EventHandle event) {
  return call("cuEventSynchronize", [&](State& now) {
    now.device().synchronize(now.events.at(event));
    return kSuccess;
  });
}

FAKE Result cuStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned) {
  return call("cuStreamWaitEvent", [&](State& now) {
    if (now.captured.count(stream) > 0) {
      return kCaptureUnsupported;
    }
    now.device().wait(number(stream), now.events.at(event));
    return kSuccess;
  });
}

FAKE Result cuStreamIsCapturing(StreamHandle stream, int* status) {
  return call("cuStreamIsCapturing", [&](State& now) {
    *status = now.captured.count(stream) > 0 ? 1 : kCaptureNone;
    return kSuccess;
  });
}
