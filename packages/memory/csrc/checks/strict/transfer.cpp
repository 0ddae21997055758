// Copies, fills and the host's memory in the strict double.
//
// What is asynchronous happens when its stream comes to it, and only then touches the
// memory; host memory that is not pinned is read at once, and written before the call
// returns. A copy that meets memory which is not accessible is a fault, and copies
// nothing.

#include <sys/mman.h>

#include <cstring>
#include <memory>

#include "work.hpp"

using namespace strict;

namespace {

enum class Where { kHost, kDevice };

bool is_pinned(const State& now, U64 at, U64 bytes) {
  auto block = now.host_memory.upper_bound(at);
  if (block == now.host_memory.begin()) {
    return false;
  }
  --block;
  return at + bytes <= block->first + block->second;
}

Where where(const State& now, U64 at) {
  auto range = now.reserved.upper_bound(at);
  if (range == now.reserved.begin()) {
    return Where::kHost;
  }
  --range;
  return at < range->first + range->second ? Where::kDevice : Where::kHost;
}

bool is_accessible(State& now, U64 at, U64 bytes) {
  const bool fine = where(now, at) == Where::kHost || usable(now, at, bytes);
  now.offences.faults += !fine;
  return fine;
}

void copy(State& now, U64 to, U64 from, U64 bytes) {
  const bool fine = is_accessible(now, to, bytes) && is_accessible(now, from, bytes);
  if (fine && now.has_bytes) {
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
  }
}

// A copy that is given to a stream; `waits` for one that the host waits for.
Result give_copy(State& now, U64 to, U64 from, U64 bytes, U64 on, bool waits) {
  Stream* stream = find_stream(now, on, current_device());
  if (stream == nullptr) {
    return kInvalidHandle;
  }
  if (is_legacy(on)) {
    if (const U64 other = capture_that_blocks(now, stream->device)) {
      spoil(now, other);
      return kCaptureImplicit;
    }
  }
  if (stream->capture != 0) {
    // Part of a graph, which nobody launches here.
    return waits ? kCaptureUnsupported : kSuccess;
  }
  std::shared_ptr<std::vector<char>> staged;
  if (where(now, from) == Where::kHost && !is_pinned(now, from, bytes)) {
    const auto* begin = reinterpret_cast<const char*>(from);
    staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
    from = reinterpret_cast<U64>(staged->data());
  }
  const U64 at =
      give(now, *stream,
           {[&now, to, from, bytes, staged] { copy(now, to, from, bytes); }, 0, 0, 0});
  if (waits || (where(now, to) == Where::kHost && !is_pinned(now, to, bytes))) {
    finish(now, stream->id, at);
  }
  return kSuccess;
}

Result copy_call(Function& called, U64 to, U64 from, U64 bytes, U64 on, bool waits) {
  return call(called, [&](State& now) -> Result {
    return bytes == 0 ? kSuccess : give_copy(now, to, from, bytes, on, waits);
  });
}

U64 address(const void* at) { return reinterpret_cast<U64>(at); }

}  // namespace

STRICT Result cuMemcpyDtoHAsync_v2(void* to, U64 from, std::size_t bytes, U64 on) {
  static Function& called = function("cuMemcpyDtoHAsync");
  return copy_call(called, address(to), from, bytes, on, false);
}

STRICT Result cuMemcpyHtoDAsync_v2(U64 to, const void* from, std::size_t bytes,
                                   U64 on) {
  static Function& called = function("cuMemcpyHtoDAsync");
  return copy_call(called, to, address(from), bytes, on, false);
}

STRICT Result cuMemcpyDtoDAsync_v2(U64 to, U64 from, std::size_t bytes, U64 on) {
  static Function& called = function("cuMemcpyDtoDAsync");
  return copy_call(called, to, from, bytes, on, false);
}

STRICT Result cuMemcpyAsync(U64 to, U64 from, std::size_t bytes, U64 on) {
  static Function& called = function("cuMemcpyAsync");
  return copy_call(called, to, from, bytes, on, false);
}

STRICT Result cuMemcpyDtoH_v2(void* to, U64 from, std::size_t bytes) {
  static Function& called = function("cuMemcpyDtoH");
  return copy_call(called, address(to), from, bytes, 0, true);
}

STRICT Result cuMemcpyHtoD_v2(U64 to, const void* from, std::size_t bytes) {
  static Function& called = function("cuMemcpyHtoD");
  return copy_call(called, to, address(from), bytes, 0, true);
}

STRICT Result cuMemsetD8Async(U64 at, unsigned char value, std::size_t bytes, U64 on) {
  static Function& called = function("cuMemsetD8Async");
  return call(called, [&](State& now) -> Result {
    Stream* stream = find_stream(now, on, current_device());
    if (stream == nullptr) {
      return kInvalidHandle;
    }
    const auto fill = [&now, at, value, bytes] {
      if (is_accessible(now, at, bytes) && now.has_bytes) {
        std::memset(reinterpret_cast<void*>(at), value, bytes);
      }
    };
    if (bytes > 0 && stream->capture == 0) {
      give(now, *stream, {fill, 0, 0, 0});
    }
    return kSuccess;
  });
}

STRICT Result cuMemHostAlloc(void** at, std::size_t bytes, unsigned) {
  static Function& called = function("cuMemHostAlloc");
  return call(called, [&](State& now) -> Result {
    if (bytes == 0) {
      return kInvalidValue;
    }
    *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
               0);
    if (*at == MAP_FAILED) {
      return kOutOfMemory;
    }
    now.host_memory[address(*at)] = bytes;
    return kSuccess;
  });
}

STRICT Result cuMemAllocHost_v2(void** at, std::size_t bytes) {
  return cuMemHostAlloc(at, bytes, 0);
}

// Waits for all that is under way, which may use it.
STRICT Result cuMemFreeHost(void* at) {
  static Function& called = function("cuMemFreeHost");
  return call(called, [&](State& now) -> Result {
    const auto found = now.host_memory.find(address(at));
    if (found == now.host_memory.end()) {
      return kInvalidValue;
    }
    if (is_unsafe(now)) {
      return kCaptureUnsupported;
    }
    for (int device = 0; device < now.num_devices; ++device) {
      finish_device(now, device);
    }
    munmap(at, found->second);
    now.host_memory.erase(found);
    return kSuccess;
  });
}

STRICT Result cuMemHostRegister_v2(void* at, std::size_t bytes, unsigned) {
  static Function& called = function("cuMemHostRegister");
  return call(called, [&](State& now) -> Result {
    const bool fresh = now.host_memory.emplace(address(at), bytes).second;
    return fresh ? kSuccess : kInvalidValue;
  });
}

STRICT Result cuMemHostUnregister(void* at) {
  static Function& called = function("cuMemHostUnregister");
  return call(called, [&](State& now) -> Result {
    return now.host_memory.erase(address(at)) > 0 ? kSuccess : kInvalidValue;
  });
}

// Not of memory that was mapped.
STRICT Result cuIpcGetMemHandle(void*, U64) { return kInvalidValue; }
