// The C interface, called through ctypes. No function throws: what may fail takes a
// buffer that says how.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <vector>

#include "allocator.hpp"
#include "driver/cuda_driver.hpp"
#include "driver/host_driver.hpp"
#include "driver/null_driver.hpp"
#include "error.hpp"
#include "replay/expandable_model.hpp"
#include "replay/gmlake_model.hpp"
#include "replay/native_model.hpp"
#include "replay/ours.hpp"
#include "replay/replay.hpp"
#include "torch/devices.hpp"

#define DRIVETRAIN_EXPORT __attribute__((visibility("default")))

namespace {

using namespace drivetrain;

enum Failure : std::int32_t {
  kNone = 0,
  kOther = 1,
  kOutOfMemory = 2,
  kMisuse = 3,
  kDriver = 4,
};

struct Problem {
  std::int32_t failure;
  char text[2044];
};

void say(Problem* problem, Failure failure, const char* what) {
  problem->failure = failure;
  std::snprintf(problem->text, sizeof problem->text, "%s", what);
}

// Runs f; what it throws goes into the problem.
template <class F>
auto guard(Problem* problem, F f) -> decltype(f()) {
  say(problem, kNone, "");
  try {
    return f();
  } catch (const OutOfMemory& thrown) {
    say(problem, kOutOfMemory, thrown.what());
  } catch (const MisuseError& thrown) {
    say(problem, kMisuse, thrown.what());
  } catch (const DriverError& thrown) {
    say(problem, kDriver, thrown.what());
  } catch (const std::exception& thrown) {
    say(problem, kOther, thrown.what());
  }
  return decltype(f())();
}

// A block, for who looks at the address space.
struct BlockInfo {
  std::uint64_t at;
  std::uint64_t size;
  std::uint64_t stream;
  std::uint64_t graph;
  std::uint64_t extent_at;
  std::uint64_t kind;
};

struct Replayed {
  std::uint64_t served;
  std::uint64_t peak_live_bytes;
  std::uint64_t peak_reserved_bytes;
  std::uint64_t remapped_bytes;
  std::uint64_t driver_calls;
  std::uint64_t flushes;
  std::uint64_t stream_waits;
  std::uint64_t num_segment_events;
};

enum Model : std::int32_t { kOurs = 0, kNative = 1, kExpandable = 2, kGmlake = 3 };

}  // namespace

extern "C" {

DRIVETRAIN_EXPORT Driver* drivetrain_memory_v1_null_driver(std::uint64_t total,
                                                           std::uint64_t chunk,
                                                           Problem* problem) {
  return guard(problem, [&]() -> Driver* { return new NullDriver(total, chunk); });
}

DRIVETRAIN_EXPORT Driver* drivetrain_memory_v1_host_driver(std::uint64_t total,
                                                           std::uint64_t chunk,
                                                           std::uint32_t delay_us,
                                                           std::uint64_t seed,
                                                           Problem* problem) {
  return guard(problem, [&]() -> Driver* {
    return new HostDriver(total, chunk, delay_us, seed);
  });
}

DRIVETRAIN_EXPORT Driver* drivetrain_memory_v1_cuda_driver(std::int32_t device,
                                                           std::int32_t peers,
                                                           const char* library,
                                                           Problem* problem) {
  return guard(problem, [&]() -> Driver* {
    return new CudaDriver(device, peers != 0, library);
  });
}

// How many CUDA devices there are; a problem unless all can map memory.
DRIVETRAIN_EXPORT std::int32_t drivetrain_memory_v1_cuda_devices(const char* library,
                                                                 Problem* problem) {
  return guard(problem, [&] { return CudaDriver::count(library); });
}

DRIVETRAIN_EXPORT void drivetrain_memory_v1_end_driver(Driver* driver) {
  delete driver;
}

DRIVETRAIN_EXPORT Allocator* drivetrain_memory_v1_allocator(Driver* driver,
                                                            std::uint64_t capacity,
                                                            double headroom,
                                                            std::uint64_t mapped,
                                                            Problem* problem) {
  return guard(problem, [&] {
    return new Allocator(*driver, Options{capacity, headroom, mapped});
  });
}

DRIVETRAIN_EXPORT void drivetrain_memory_v1_end_allocator(Allocator* allocator) {
  delete allocator;
}

DRIVETRAIN_EXPORT std::uint64_t drivetrain_memory_v1_allocate(Allocator* allocator,
                                                              std::uint64_t size,
                                                              std::uint64_t stream,
                                                              std::uint64_t graph,
                                                              Problem* problem) {
  return guard(problem, [&] { return allocator->allocate(size, stream, graph); });
}

DRIVETRAIN_EXPORT void drivetrain_memory_v1_free(Allocator* allocator, std::uint64_t at,
                                                 Problem* problem) {
  guard(problem, [&] { allocator->free(at); });
}

DRIVETRAIN_EXPORT void drivetrain_memory_v1_record_stream(Allocator* allocator,
                                                          std::uint64_t at,
                                                          std::uint64_t stream,
                                                          Problem* problem) {
  guard(problem, [&] { allocator->record_stream(at, stream); });
}

DRIVETRAIN_EXPORT void drivetrain_memory_v1_release_graph(Allocator* allocator,
                                                          std::uint64_t graph,
                                                          Problem* problem) {
  guard(problem, [&] { allocator->release_graph(graph); });
}

DRIVETRAIN_EXPORT void drivetrain_memory_v1_trim(Allocator* allocator,
                                                 Problem* problem) {
  guard(problem, [&] { allocator->trim(); });
}

DRIVETRAIN_EXPORT void drivetrain_memory_v1_limit(Allocator* allocator,
                                                  std::uint64_t bytes,
                                                  Problem* problem) {
  guard(problem, [&] { allocator->limit(bytes); });
}

DRIVETRAIN_EXPORT void drivetrain_memory_v1_counters(Allocator* allocator,
                                                     Counters* counters) {
  *counters = allocator->counters();
}

DRIVETRAIN_EXPORT void drivetrain_memory_v1_reset_peaks(Allocator* allocator) {
  allocator->reset_peaks();
}

DRIVETRAIN_EXPORT void drivetrain_memory_v1_keep_history(Allocator* allocator,
                                                         std::uint64_t most,
                                                         Problem* problem) {
  guard(problem, [&] { allocator->keep_history(most); });
}

// Returns how many entries there are; as many as there is room for are written.
DRIVETRAIN_EXPORT std::uint64_t drivetrain_memory_v1_history(Allocator* allocator,
                                                             HistoryEntry* entries,
                                                             std::uint64_t room,
                                                             Problem* problem) {
  return guard(problem, [&] {
    const std::vector<HistoryEntry> found = allocator->history();
    std::copy_n(found.begin(), std::min<std::size_t>(room, found.size()), entries);
    return static_cast<std::uint64_t>(found.size());
  });
}

// Returns how many blocks there are; as many as there is room for are written.
DRIVETRAIN_EXPORT std::uint64_t drivetrain_memory_v1_blocks(Allocator* allocator,
                                                            BlockInfo* blocks,
                                                            std::uint64_t room,
                                                            Problem* problem) {
  return guard(problem, [&] {
    std::uint64_t count = 0;
    allocator->each_block([&](const Block& block) {
      if (count < room) {
        const Arena& arena = *block.extent->arena;
        blocks[count] = {
            block.at,      block.size,       arena.clock().stream(),
            arena.graph(), block.extent->at, static_cast<std::uint64_t>(block.kind())};
      }
      ++count;
    });
    return count;
  });
}

// How PyTorch's hooks make their allocators; before any of them is called.
DRIVETRAIN_EXPORT void drivetrain_memory_v1_configure(std::uint64_t capacity,
                                                      double headroom,
                                                      std::int32_t peers,
                                                      const char* library,
                                                      Problem* problem) {
  guard(problem, [&] {
    Devices::of_process().configure(
        {Options{capacity, headroom, 0}, peers != 0, library, 0});
  });
}

// As drivetrain_memory_v1_keep_history, for every allocator that the hooks use or will.
DRIVETRAIN_EXPORT void drivetrain_memory_v1_keep_all_history(std::uint64_t most,
                                                             Problem* problem) {
  guard(problem, [&] { Devices::of_process().keep_history(most); });
}

// The allocator that the hooks use for a device; null before they did.
DRIVETRAIN_EXPORT Allocator* drivetrain_memory_v1_of_device(std::int32_t number) {
  Devices::Device* device = Devices::of_process().find(number);
  return device == nullptr ? nullptr : &device->allocator;
}

// Plays a trace to an allocator of its own.
//
// Args:
//   model: Whose.
//   capacity: Of the device, in bytes.
//   chunk: What is mapped at a time, in bytes; for GMLake, the smallest request that
//     blocks are stitched for.
//   headroom: As in Options; this project's allocator only.
//   calls, steps: Where the driver calls of each step go, and for how many there is
//   room.
//   segment_events, room: Where the memory goes that was taken of the device, and for
//   how many entries there is room; there may be more of them.
DRIVETRAIN_EXPORT void drivetrain_memory_v1_replay(
    const TraceEvent* events, std::uint64_t count, std::int32_t model,
    std::uint64_t capacity, std::uint64_t chunk, double headroom, Replayed* replayed,
    std::uint64_t* calls, std::uint64_t steps, SegmentEvent* segment_events,
    std::uint64_t room, Problem* problem) {
  guard(problem, [&] {
    std::unique_ptr<Driver> driver;
    std::unique_ptr<Subject> subject;
    if (model == kOurs) {
      driver = std::make_unique<NullDriver>(capacity, chunk);
      subject = std::make_unique<Ours>(*driver, Options{capacity, headroom, 0});
    } else if (model == kNative) {
      subject = std::make_unique<NativeModel>(capacity);
    } else if (model == kExpandable) {
      subject = std::make_unique<ExpandableModel>(capacity, chunk);
    } else if (model == kGmlake) {
      subject = std::make_unique<GmlakeModel>(capacity, chunk);
    } else {
      throw MisuseError("there is no model " + std::to_string(model));
    }
    const Played played = replay(events, count, *subject);
    const std::vector<SegmentEvent> segments = subject->segment_events();
    *replayed = {played.served,
                 played.peak_live_bytes,
                 played.effort.peak_reserved_bytes,
                 played.effort.remapped_bytes,
                 played.effort.driver_calls,
                 played.effort.flushes,
                 played.effort.stream_waits,
                 segments.size()};
    std::copy_n(played.calls_by_step.begin(),
                std::min<std::size_t>(steps, played.calls_by_step.size()), calls);
    std::copy_n(segments.begin(), std::min<std::size_t>(room, segments.size()),
                segment_events);
  });
}

}  // extern "C"
