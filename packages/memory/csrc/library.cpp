// The C interface, called through ctypes. No function throws: what may fail takes a
// buffer that says how.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>

#include "allocator.hpp"
#include "driver/host_driver.hpp"
#include "driver/null_driver.hpp"
#include "error.hpp"
#include "replay/expandable_model.hpp"
#include "replay/native_model.hpp"
#include "replay/ours.hpp"
#include "replay/replay.hpp"

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

struct Replayed {
  std::uint64_t served;
  std::uint64_t peak_live_bytes;
  std::uint64_t peak_reserved_bytes;
  std::uint64_t remapped_bytes;
  std::uint64_t driver_calls;
  std::uint64_t flushes;
  std::uint64_t stream_waits;
};

enum Model : std::int32_t { kOurs = 0, kNative = 1, kExpandable = 2 };

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

DRIVETRAIN_EXPORT void drivetrain_memory_v1_counters(Allocator* allocator,
                                                     Counters* counters) {
  *counters = allocator->counters();
}

// Plays a trace to an allocator of its own.
//
// Args:
//   model: Whose.
//   capacity: Of the device, in bytes.
//   chunk: What is mapped at a time, in bytes.
//   headroom: As in Options; this project's allocator only.
//   calls, steps: Where the driver calls of each step go, and for how many there is
//   room.
DRIVETRAIN_EXPORT void drivetrain_memory_v1_replay(
    const TraceEvent* events, std::uint64_t count, std::int32_t model,
    std::uint64_t capacity, std::uint64_t chunk, double headroom, Replayed* replayed,
    std::uint64_t* calls, std::uint64_t steps, Problem* problem) {
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
    } else {
      throw MisuseError("there is no model " + std::to_string(model));
    }
    const Played played = replay(events, count, *subject);
    *replayed = {played.served,
                 played.peak_live_bytes,
                 played.effort.peak_reserved_bytes,
                 played.effort.remapped_bytes,
                 played.effort.driver_calls,
                 played.effort.flushes,
                 played.effort.stream_waits};
    const std::size_t room = std::min<std::size_t>(steps, played.calls_by_step.size());
    std::copy_n(played.calls_by_step.begin(), room, calls);
  });
}

}  // extern "C"
