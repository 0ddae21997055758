#include "control.hpp"

namespace strict {

void configure(int devices, U64 total, bool has_bytes) {
  locked([&](State& now) {
    now.num_devices = devices;
    now.total = total;
    now.has_bytes = has_bytes;
  });
}

void refuse(const char* name, U64 after, U64 times, U64 share, Result result) {
  locked([&](State& now) {
    if (std::string(name) != "*") {
      Function& one = now.functions[name];
      one.after = after;
      one.times = times;
      one.share = share;
      one.result = result;
      return;
    }
    for (auto& [_, one] : now.functions) {
      one.after = after;
      one.times = times;
      one.share = share;
      one.result = result;
    }
  });
}

void refuse_nothing() { refuse("*", 0, 0, 0, kSuccess); }

U64 submit(U64 handle, int device, std::function<void()> run) {
  return locked([&](State& now) -> U64 {
    Stream* stream = find_stream(now, handle, device);
    if (stream == nullptr || stream->capture != 0) {
      return 0;
    }
    return give(now, *stream, {std::move(run), 0, 0, 0});
  });
}

void order(U64 handle, U64 after, int device, int device_after) {
  locked([&](State& now) {
    Stream* stream = find_stream(now, handle, device);
    const Stream* first = find_stream(now, after, device_after);
    if (stream != nullptr && first != nullptr && stream != first &&
        !is_done(now, first->id, first->given)) {
      give(now, *stream, {{}, first->id, first->given, 0});
    }
  });
}

U64 submit_gate(U64 handle, int device) {
  return locked([&](State& now) -> U64 {
    Stream* stream = find_stream(now, handle, device);
    if (stream == nullptr || stream->capture != 0) {
      return 0;
    }
    const U64 gate = now.next++;
    now.gates[gate] = {};
    give(now, *stream, {{}, 0, 0, gate});
    return gate;
  });
}

void submit_opening(U64 handle, int device, U64 gate) {
  locked([&](State& now) {
    Stream* stream = find_stream(now, handle, device);
    if (stream == nullptr || stream->capture != 0 || now.gates.count(gate) == 0) {
      return;
    }
    const auto open = [&now, gate] {
      const auto found = now.gates.find(gate);
      if (found != now.gates.end()) {
        found->second.open = true;
      }
    };
    const U64 at = give(now, *stream, {open, 0, 0, 0});
    now.gates[gate].stream = stream->id;
    now.gates[gate].at = at;
  });
}

void advance_any(U64 random, U64 most) {
  locked([&](State& now) {
    if (now.streams.empty()) {
      return;
    }
    auto which = now.streams.begin();
    std::advance(which, static_cast<std::ptrdiff_t>(random % now.streams.size()));
    advance(now, which->second, most);
  });
}

bool finish_all() {
  return locked([&](State& now) {
    bool ends = true;
    for (int device = 0; device < now.num_devices; ++device) {
      ends = finish_device(now, device) && ends;
    }
    return ends;
  });
}

Place place_of(const State& now, U64 at) {
  U64 begin = 0;
  const Mapping* mapping = mapping_at(now, at, &begin);
  if (mapping == nullptr || !mapping->accessible) {
    return {};
  }
  return {mapping->memory, at - begin};
}

U64 count(Kind kind) {
  return locked([&](State& now) -> U64 {
    switch (kind) {
      case Kind::kMemory:
        return now.memory.size();
      case Kind::kMappings:
        return now.mapped.size();
      case Kind::kReservations:
        return now.reserved.size();
      case Kind::kEvents:
        return now.events.size();
      case Kind::kStreams:
        return now.handles.size();
      case Kind::kHostMemory:
        return now.host_memory.size();
    }
    return 0;
  });
}

}  // namespace strict

using namespace strict;

// From Python ------------------------------------------------------------------------

STRICT void strict_configure(int devices, U64 total) {
  configure(devices, total, true);
}

STRICT void strict_address_limit(U64 bytes) {
  locked([&](State& now) { now.address_limit = bytes; });
}

STRICT U64 strict_reserved() {
  return locked([](State& now) { return now.reserved_bytes; });
}

// Another process takes memory of a device.
STRICT void strict_take(int device, U64 bytes) {
  locked(
      [&](State& now) { now.devices[static_cast<std::size_t>(device)].used += bytes; });
}

STRICT U64 strict_free(int device) {
  return locked([&](State& now) { return free_bytes(now, device); });
}

STRICT void strict_fail(const char* name, int after, Result result, int times) {
  refuse(name, static_cast<U64>(after), static_cast<U64>(times > 0 ? times : 0), 0,
         result);
}

STRICT void strict_fail_share(const char* name, U64 of_a_million, Result result) {
  refuse(name, 0, 0, of_a_million, result);
}

STRICT U64 strict_calls(const char* name) {
  return locked([&](State& now) { return now.functions[name].calls; });
}

// 0 to 5: streams, events and memory that were used after their end, captures that were
// spoilt, hangs, faults.
STRICT U64 strict_offences(int which) {
  return locked([&](State& now) {
    const Offences& all = now.offences;
    const U64 counts[] = {all.dead_streams, all.dead_events, all.dead_memory,
                          all.spoilt,       all.hangs,       all.faults};
    return counts[which];
  });
}

STRICT U64 strict_dead_uses() {
  return strict_offences(0) + strict_offences(1) + strict_offences(2);
}

STRICT U64 strict_spoilt() { return strict_offences(3); }

// A handle that was destroyed names a new stream from now on.
STRICT void strict_stream(U64 handle, int device, int blocking) {
  locked([&](State& now) {
    if (!is_legacy(handle) && now.handles.count(handle) == 0) {
      make_stream(now, handle, device, blocking != 0);
      return;
    }
    Stream* stream = find_stream(now, handle, device);
    stream->device = device;
    stream->blocking = blocking != 0;
  });
}

STRICT void strict_destroy_stream(U64 handle) {
  locked([&](State& now) {
    if (Stream* stream = find_stream(now, handle, current_device())) {
      destroy_stream(now, *stream);
    }
  });
}

STRICT void strict_capture(U64 handle, int on) {
  locked([&](State& now) {
    Stream* stream = find_stream(now, handle, current_device());
    if (stream != nullptr && on != 0 && stream->capture == 0) {
      begin_capture(now, *stream, 0);
    } else if (stream != nullptr && on == 0) {
      end_capture(now, stream->capture);
    }
  });
}

// Work that is done when `strict_complete` says so, or the host waits for it.
STRICT U64 strict_submit(U64 handle) {
  return submit(handle, current_device(), [] {});
}

STRICT void strict_complete(U64 handle, U64 upto) {
  locked([&](State& now) {
    const Stream* stream = find_stream(now, handle, current_device());
    if (stream != nullptr) {
      finish(now, stream->id, upto < stream->given ? upto : stream->given);
    }
  });
}

// Work that never ends unless the gate is opened, by other work or by the test.
STRICT U64 strict_submit_gate(U64 handle) {
  return submit_gate(handle, current_device());
}

STRICT void strict_submit_opening(U64 handle, U64 gate) {
  submit_opening(handle, current_device(), gate);
}

STRICT void strict_keep_waits() {
  locked([](State& now) { now.keeps_waits = true; });
}

STRICT int strict_num_waits() {
  return locked([](State& now) { return static_cast<int>(now.waits.size()); });
}

// The stream that waits, the one that it waits for, and up to which work.
STRICT void strict_wait(int index, U64* found) {
  locked([&](State& now) {
    const Wait& wait = now.waits.at(static_cast<std::size_t>(index));
    found[0] = wait.stream;
    found[1] = wait.on;
    found[2] = wait.at;
  });
}

STRICT int strict_usable(U64 at, U64 bytes) {
  return locked([&](State& now) { return usable(now, at, bytes) ? 1 : 0; });
}

STRICT U64 strict_count(int what) { return count(static_cast<Kind>(what)); }
