// Work on the streams of the strict double: given, waited for, done.
//
// Work is done when a test lets a stream advance, or when the host waits for it. Each
// stream does its work in order. Nothing here takes the mutex of the state.

#pragma once

#include <functional>

#include "state.hpp"

namespace strict {

// The living stream that a handle names, made if nobody has named it so far; null, and
// an offence, for one that was destroyed. The legacy stream is that of a device.
Stream* find_stream(State& now, U64 handle, int device);
inline bool is_legacy(U64 handle) { return handle == 0 || handle == 1; }

// Makes a stream; one of the same handle that was destroyed stays as it is.
Stream& make_stream(State& now, U64 handle, int device, bool blocking);
// The stream does what it was given, and takes no more.
void destroy_stream(State& now, Stream& stream);

// Gives work to a stream, and returns its number there.
U64 give(State& now, Stream& stream, Work work);

// Does up to `most` pieces of work that can be done. Returns how many there were.
U64 advance(State& now, Stream& stream, U64 most);
// As the host waits: does all up to a piece of work, and what that waits for. Returns
// false, and notes a hang, where that can never end; what stands in the way is passed
// over then.
bool finish(State& now, StreamId stream, U64 until);
// The same for all streams of a device.
bool finish_device(State& now, int device);

bool is_done(const State& now, StreamId stream, U64 at);

// Captures -------------------------------------------------------------------------

U64 begin_capture(State& now, Stream& stream, int mode);
// Returns whether the capture is whole.
bool end_capture(State& now, U64 capture);
void spoil(State& now, U64 capture);
// The capture of a blocking stream of a device, which the legacy stream must leave
// alone; 0 for none.
U64 capture_that_blocks(const State& now, int device);
// Any capture of a stream of a device; 0 for none.
U64 capture_of_device(const State& now, int device);
// Whether a call that may be unsafe spoils a capture now, which it then does.
bool is_unsafe(State& now);

}  // namespace strict
