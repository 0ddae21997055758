#include "work.hpp"

namespace strict {

namespace {

Stream* by_id(State& now, StreamId id) {
  const auto found = now.streams.find(id);
  return found == now.streams.end() ? nullptr : &found->second;
}

bool is_blocked(const State& now, const Work& work) {
  if (work.gate != 0) {
    const auto gate = now.gates.find(work.gate);
    if (gate != now.gates.end() && !gate->second.open) {
      return true;
    }
  }
  return work.on != 0 && !is_done(now, work.on, work.until);
}

void do_next(State& now, Stream& stream) {
  Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  ++stream.done;
  if (work.gate != 0) {
    now.gates.erase(work.gate);
  }
  if (work.run) {
    work.run();
  }
}

void note_hang(State& now, const Stream& stream, const char* what) {
  ++now.offences.hangs;
  if (now.offences.first_hang.empty()) {
    now.offences.first_hang = "stream " + std::to_string(stream.handle) +
                              " of device " + std::to_string(stream.device) +
                              ", work " + std::to_string(stream.done + 1) + ": " + what;
  }
}

// Lets the first piece of work come about; false if that can never be.
bool unblock(State& now, Stream& stream) {
  Work& work = stream.queue.front();
  if (work.gate != 0) {
    const auto gate = now.gates.find(work.gate);
    if (gate != now.gates.end() && !gate->second.open) {
      const Gate opened_by = gate->second;
      const bool comes =
          opened_by.stream != 0 && finish(now, opened_by.stream, opened_by.at);
      if (!comes) {
        if (opened_by.stream == 0) {
          note_hang(now, stream, "the host waits for what it has yet to submit");
        }
        stream.queue.front().gate = 0;
        return false;
      }
    }
  }
  const Work& again = stream.queue.front();
  if (again.on != 0 && !finish(now, again.on, again.until)) {
    stream.queue.front().on = 0;
    return false;
  }
  return true;
}

// A destroyed stream goes when it is done.
void sweep(State& now, StreamId id) {
  const Stream* stream = by_id(now, id);
  if (stream != nullptr && stream->dead && stream->queue.empty() && !stream->awaited) {
    now.streams.erase(id);
  }
}

}  // namespace

Stream& make_stream(State& now, U64 handle, int device, bool blocking) {
  const StreamId id = now.next_stream++;
  Stream& stream = now.streams[id];
  stream.id = id;
  stream.handle = handle;
  stream.device = device;
  stream.blocking = blocking;
  if (is_legacy(handle)) {
    now.devices[static_cast<std::size_t>(device)].legacy = id;
  } else {
    now.handles[handle] = id;
    now.dead_handles.erase(handle);
  }
  return stream;
}

Stream* find_stream(State& now, U64 handle, int device) {
  if (is_legacy(handle)) {
    const int on = device < 0 ? 0 : device;
    const StreamId id = now.devices[static_cast<std::size_t>(on)].legacy;
    return id != 0 ? &now.streams.at(id) : &make_stream(now, 0, on, false);
  }
  const auto found = now.handles.find(handle);
  if (found != now.handles.end()) {
    return &now.streams.at(found->second);
  }
  if (now.dead_handles.count(handle) > 0) {
    ++now.offences.dead_streams;
    return nullptr;
  }
  return &make_stream(now, handle, 0, false);
}

void destroy_stream(State& now, Stream& stream) {
  now.handles.erase(stream.handle);
  now.dead_handles.insert(stream.handle);
  stream.dead = true;
  sweep(now, stream.id);
}

U64 give(State& now, Stream& stream, Work work) {
  if (stream.queue.empty() && !work.run && !is_blocked(now, work)) {
    // Nothing remains to be done, so that the stream stays idle.
    stream.done = ++stream.given;
    return stream.given;
  }
  stream.queue.push_back(std::move(work));
  return ++stream.given;
}

U64 advance(State& now, Stream& stream, U64 most) {
  U64 count = 0;
  while (count < most && !stream.queue.empty() &&
         !is_blocked(now, stream.queue.front())) {
    do_next(now, stream);
    ++count;
  }
  if (count > 0) {
    sweep(now, stream.id);
  }
  return count;
}

bool finish(State& now, StreamId id, U64 until) {
  Stream* stream = by_id(now, id);
  if (stream == nullptr || stream->done >= until) {
    return true;
  }
  if (stream->awaited) {
    note_hang(now, *stream, "streams wait for each other");
    return false;
  }
  stream->awaited = true;
  bool ends = true;
  while (stream->done < until && !stream->queue.empty()) {
    ends = unblock(now, *stream) && ends;
    do_next(now, *stream);
  }
  stream->awaited = false;
  sweep(now, id);
  return ends;
}

bool finish_device(State& now, int device) {
  std::vector<std::pair<StreamId, U64>> streams;
  for (const auto& [id, stream] : now.streams) {
    if (stream.device == device) {
      streams.emplace_back(id, stream.given);
    }
  }
  bool ends = true;
  for (const auto& [id, given] : streams) {
    ends = finish(now, id, given) && ends;
  }
  return ends;
}

bool is_done(const State& now, StreamId id, U64 at) {
  const auto found = now.streams.find(id);
  return found == now.streams.end() || found->second.done >= at;
}

U64 begin_capture(State& now, Stream& stream, int mode) {
  const U64 id = now.next++;
  now.captures[id] = {stream.id, mode, this_thread(), false};
  stream.capture = id;
  return id;
}

bool end_capture(State& now, U64 capture) {
  const auto found = now.captures.find(capture);
  if (found == now.captures.end()) {
    return false;
  }
  const bool whole = !found->second.spoilt;
  now.captures.erase(found);
  for (auto& [_, stream] : now.streams) {
    if (stream.capture == capture) {
      stream.capture = 0;
    }
  }
  return whole;
}

void spoil(State& now, U64 capture) {
  const auto found = now.captures.find(capture);
  if (found != now.captures.end() && !found->second.spoilt) {
    found->second.spoilt = true;
    ++now.offences.spoilt;
  }
}

U64 capture_that_blocks(const State& now, int device) {
  if (now.captures.empty()) {
    return 0;
  }
  for (const auto& [_, stream] : now.streams) {
    if (stream.capture != 0 && stream.blocking && stream.device == device) {
      return stream.capture;
    }
  }
  return 0;
}

U64 capture_of_device(const State& now, int device) {
  if (now.captures.empty()) {
    return 0;
  }
  for (const auto& [_, stream] : now.streams) {
    if (stream.capture != 0 && stream.device == device) {
      return stream.capture;
    }
  }
  return 0;
}

bool is_unsafe(State& now) {
  const int mode = thread_capture_mode();
  if (now.captures.empty() || mode == 2) {
    return false;
  }
  bool any = false;
  for (const auto& [id, capture] : now.captures) {
    const bool own = capture.thread == this_thread();
    if (own ? capture.mode != 2 : mode == 0 && capture.mode == 0) {
      spoil(now, id);
      any = true;
    }
  }
  return any;
}

}  // namespace strict
