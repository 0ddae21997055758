// Streams, events and captures of the strict double.
//
//  - a stream and an event belong to a context; an event is recorded on streams of its
//    own context alone, else CUDA_ERROR_INVALID_HANDLE;
//  - a handle that was destroyed is an error, and every use of one is counted;
//  - while a blocking stream is captured the legacy stream may not be used: asked
//  whether
//    it captures, it answers CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; an event recorded on
//    it, or a wait, spoils the capture;
//  - a captured stream waits for no event from outside; a stream that waits for an
//  event
//    of a capture becomes part of it; such an event is not to be queried, nor is such a
//    stream, nor the context that it is of;
//  - in the usual capture mode nobody asks for, or waits for, any event meanwhile.

#include "../../driver/cuda_api.hpp"
#include "work.hpp"

using namespace strict;

namespace {

constexpr unsigned kNonBlocking = 1;

Event* find_event(State& now, U64 handle) {
  const auto found = now.events.find(handle);
  if (found == now.events.end()) {
    ++now.offences.dead_events;
    return nullptr;
  }
  return &found->second;
}

Stream* find(State& now, U64 handle) {
  return find_stream(now, handle, current_device());
}

// Whether the legacy stream is asked for what spoils the capture of another.
bool disturbs(State& now, U64 handle, const Stream& stream) {
  const U64 other = is_legacy(handle) ? capture_that_blocks(now, stream.device) : 0;
  if (other != 0) {
    spoil(now, other);
  }
  return other != 0;
}

bool is_spoilt(const State& now, U64 capture) {
  const auto found = now.captures.find(capture);
  return found != now.captures.end() && found->second.spoilt;
}

// What may be asked of a stream from outside: whether it is done, and to wait for it.
Result check_query(State& now, const Stream& stream) {
  if (stream.capture != 0) {
    spoil(now, stream.capture);
    return kCaptureUnsupported;
  }
  return is_unsafe(now) ? kCaptureUnsupported : kSuccess;
}

}  // namespace

STRICT Result cuStreamCreate(U64* handle, unsigned flags) {
  static Function& called = function("cuStreamCreate");
  return call(called, [&](State& now) -> Result {
    if (current_device() < 0) {
      return kInvalidContext;
    }
    *handle = 0x57000000 + now.next++;
    make_stream(now, *handle, current_device(), (flags & kNonBlocking) == 0);
    return kSuccess;
  });
}

STRICT Result cuStreamCreateWithPriority(U64* handle, unsigned flags, int) {
  return cuStreamCreate(handle, flags);
}

STRICT Result cuStreamDestroy_v2(U64 handle) {
  static Function& called = function("cuStreamDestroy");
  return call(called, [&](State& now) -> Result {
    Stream* stream = is_legacy(handle) ? nullptr : find(now, handle);
    if (stream == nullptr) {
      return kInvalidHandle;
    }
    destroy_stream(now, *stream);
    return kSuccess;
  });
}

STRICT Result cuStreamGetCtx(U64 handle, void** context) {
  static Function& called = function("cuStreamGetCtx");
  return call(called, [&](State& now) -> Result {
    const Stream* stream = find(now, handle);
    if (stream == nullptr) {
      return kInvalidHandle;
    }
    *context = context_of_device(stream->device);
    return kSuccess;
  });
}

STRICT Result cuStreamGetDevice(U64 handle, int* device) {
  static Function& called = function("cuStreamGetDevice");
  return call(called, [&](State& now) -> Result {
    const Stream* stream = find(now, handle);
    if (stream == nullptr) {
      return kInvalidHandle;
    }
    *device = stream->device;
    return kSuccess;
  });
}

STRICT Result cuStreamGetFlags(U64 handle, unsigned* flags) {
  static Function& called = function("cuStreamGetFlags");
  return call(called, [&](State& now) -> Result {
    const Stream* stream = find(now, handle);
    if (stream == nullptr) {
      return kInvalidHandle;
    }
    *flags = stream->blocking || is_legacy(handle) ? 0 : kNonBlocking;
    return kSuccess;
  });
}

STRICT Result cuStreamGetId(U64 handle, U64* id) {
  static Function& called = function("cuStreamGetId");
  return call(called, [&](State& now) -> Result {
    const Stream* stream = find(now, handle);
    if (stream == nullptr) {
      return kInvalidHandle;
    }
    *id = stream->id;
    return kSuccess;
  });
}

STRICT Result cuStreamQuery(U64 handle) {
  static Function& called = function("cuStreamQuery");
  return call(called, [&](State& now) -> Result {
    const Stream* stream = find(now, handle);
    if (stream == nullptr) {
      return kInvalidHandle;
    }
    if (const Result refused = check_query(now, *stream)) {
      return refused;
    }
    return stream->queue.empty() ? kSuccess : kNotReady;
  });
}

STRICT Result cuStreamSynchronize(U64 handle) {
  static Function& called = function("cuStreamSynchronize");
  return call(called, [&](State& now) -> Result {
    const Stream* stream = find(now, handle);
    if (stream == nullptr) {
      return kInvalidHandle;
    }
    if (const Result refused = check_query(now, *stream)) {
      return refused;
    }
    finish(now, stream->id, stream->given);
    return kSuccess;
  });
}

// Those of destroyed streams as well.
STRICT Result cuCtxSynchronize() {
  static Function& called = function("cuCtxSynchronize");
  return call(called, [&](State& now) -> Result {
    const int device = current_device();
    if (device < 0) {
      return kInvalidContext;
    }
    if (const U64 capture = capture_of_device(now, device)) {
      spoil(now, capture);
      return kCaptureUnsupported;
    }
    if (is_unsafe(now)) {
      return kCaptureUnsupported;
    }
    finish_device(now, device);
    return kSuccess;
  });
}

STRICT Result cuStreamIsCapturing(U64 handle, int* status) {
  static Function& called = function("cuStreamIsCapturing");
  return call(called, [&](State& now) -> Result {
    const Stream* stream = find(now, handle);
    if (stream == nullptr) {
      return kInvalidHandle;
    }
    if (is_legacy(handle) && capture_that_blocks(now, stream->device) != 0) {
      return kCaptureImplicit;
    }
    *status = stream->capture == 0 ? 0 : is_spoilt(now, stream->capture) ? 2 : 1;
    return kSuccess;
  });
}

STRICT Result cuStreamGetCaptureInfo_v2(U64 handle, int* status, U64* id, void*, void*,
                                        std::size_t*) {
  const Result result = cuStreamIsCapturing(handle, status);
  if (result == kSuccess && *status != 0 && id != nullptr) {
    locked([&](State& now) {
      const auto found = now.handles.find(handle);
      *id = found == now.handles.end() ? 0 : now.streams.at(found->second).capture;
    });
  }
  return result;
}

STRICT Result cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(thread_capture_mode(), *mode);
  return kSuccess;
}

STRICT Result cuEventCreate(U64* handle, unsigned) {
  static Function& called = function("cuEventCreate");
  return call(called, [&](State& now) -> Result {
    if (current_device() < 0) {
      return kInvalidContext;
    }
    *handle = 0xe0000000 + now.next++;
    now.events[*handle].device = current_device();
    return kSuccess;
  });
}

STRICT Result cuEventDestroy_v2(U64 handle) {
  static Function& called = function("cuEventDestroy");
  return call(called, [&](State& now) -> Result {
    if (find_event(now, handle) == nullptr) {
      return kInvalidHandle;
    }
    now.events.erase(handle);
    return kSuccess;
  });
}

STRICT Result cuEventRecord(U64 handle, U64 on) {
  static Function& called = function("cuEventRecord");
  return call(called, [&](State& now) -> Result {
    Event* event = find_event(now, handle);
    const Stream* stream = event == nullptr ? nullptr : find(now, on);
    if (stream == nullptr || event->device != stream->device) {
      return kInvalidHandle;
    }
    if (disturbs(now, on, *stream)) {
      return kCaptureImplicit;
    }
    if (is_spoilt(now, stream->capture)) {
      return kCaptureInvalidated;
    }
    event->capture = stream->capture;
    event->stream = stream->id;
    event->at = stream->given;
    return kSuccess;
  });
}

STRICT Result cuEventRecordWithFlags(U64 handle, U64 on, unsigned) {
  return cuEventRecord(handle, on);
}

STRICT Result cuEventQuery(U64 handle) {
  static Function& called = function("cuEventQuery");
  return call(called, [&](State& now) -> Result {
    const Event* event = find_event(now, handle);
    if (event == nullptr) {
      return kInvalidHandle;
    }
    if (event->capture != 0) {
      spoil(now, event->capture);
      return kCapturedEvent;
    }
    if (is_unsafe(now)) {
      return kCaptureUnsupported;
    }
    return is_done(now, event->stream, event->at) ? kSuccess : kNotReady;
  });
}

STRICT Result cuEventSynchronize(U64 handle) {
  static Function& called = function("cuEventSynchronize");
  return call(called, [&](State& now) -> Result {
    const Event* event = find_event(now, handle);
    if (event == nullptr) {
      return kInvalidHandle;
    }
    if (event->capture != 0) {
      spoil(now, event->capture);
      return kCapturedEvent;
    }
    if (is_unsafe(now)) {
      return kCaptureUnsupported;
    }
    finish(now, event->stream, event->at);
    return kSuccess;
  });
}

STRICT Result cuStreamWaitEvent(U64 handle, U64 awaited, unsigned) {
  static Function& called = function("cuStreamWaitEvent");
  return call(called, [&](State& now) -> Result {
    const Event* event = find_event(now, awaited);
    Stream* stream = event == nullptr ? nullptr : find(now, handle);
    if (stream == nullptr) {
      return kInvalidHandle;
    }
    if (disturbs(now, handle, *stream)) {
      return kCaptureImplicit;
    }
    if (stream->capture != event->capture) {
      if (stream->capture == 0 && now.captures.count(event->capture) > 0) {
        stream->capture = event->capture;
        return kSuccess;
      }
      if (stream->capture == 0) {
        return kCapturedEvent;
      }
      spoil(now, stream->capture);
      return kCaptureIsolation;
    }
    if (stream->capture != 0 || event->stream == 0) {
      return kSuccess;
    }
    if (now.keeps_waits) {
      const auto on = now.streams.find(event->stream);
      const U64 name = on == now.streams.end() ? 0 : on->second.handle;
      now.waits.push_back({stream->handle, name, event->at});
    }
    if (event->stream != stream->id && !is_done(now, event->stream, event->at)) {
      give(now, *stream, {{}, event->stream, event->at, 0});
    }
    return kSuccess;
  });
}
