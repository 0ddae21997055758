#include "replay.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "../error.hpp"

namespace drivetrain {

namespace {

[[noreturn]] void fail(std::size_t index, const char* what, std::uint32_t id) {
  throw MisuseError("event " + std::to_string(index) + " of the trace " + what +
                    " block " + std::to_string(id));
}

}  // namespace

Played replay(const TraceEvent* events, std::size_t count, Subject& subject) {
  Played played;
  std::unordered_map<std::uint32_t, Bytes> live;
  Bytes live_bytes = 0;
  std::uint64_t calls = 0;
  const auto end_step = [&] {
    const std::uint64_t now = subject.effort().driver_calls;
    played.calls_by_step.push_back(now - calls);
    calls = now;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const TraceEvent& event = events[i];
    switch (event.operation) {
      case Operation::kAllocate: {
        if (!live.emplace(event.id, event.size).second) {
          fail(i, "allocates the live", event.id);
        }
        live_bytes += round_up(event.size, kUnit);
        if (!subject.allocate(event.id, event.size, event.stream)) {
          played.effort = subject.effort();
          return played;
        }
        played.peak_live_bytes = std::max(played.peak_live_bytes, live_bytes);
        break;
      }
      case Operation::kFree: {
        const auto found = live.find(event.id);
        if (found == live.end()) {
          fail(i, "frees the unknown", event.id);
        }
        live_bytes -= round_up(found->second, kUnit);
        live.erase(found);
        subject.free(event.id);
        break;
      }
      case Operation::kRecordStream:
        if (live.count(event.id) == 0) {
          fail(i, "records a stream for the unknown", event.id);
        }
        subject.record_stream(event.id, event.stream);
        break;
      case Operation::kStep:
        end_step();
        break;
      default:
        fail(i, "has an unknown operation for", event.id);
    }
    ++played.served;
  }
  end_step();
  played.effort = subject.effort();
  return played;
}

}  // namespace drivetrain
