// What tests set in the strict double of the CUDA driver, and ask of it: from C++ here,
// from Python by the `strict_` functions of `control.cpp`.
//
// Work runs under the mutex of the state, and calls none of these.

#pragma once

#include <functional>

#include "work.hpp"

namespace strict {

// Devices with so many bytes each; before they are used, or between two programs.
// Without `has_bytes` nothing is mapped in truth, and only the books are kept.
void configure(int devices, U64 total, bool has_bytes);

// Refuses the call of a function after so many others, and as many behind it as
// `times`; `share` calls of a million at random, for `times` 0. "*" is every function
// that was called so far.
void refuse(const char* function, U64 after, U64 times, U64 share, Result result);
void refuse_nothing();

// Gives work to a stream that is not captured. Returns its number; 0 where the stream
// is captured or gone.
U64 submit(U64 stream, int device, std::function<void()> run);
// The first stream's work from now on comes after what the second has by now.
void order(U64 stream, U64 after, int device, int device_after);

// A receive: work that waits until the returned gate is opened; and a send: work of
// another stream that opens it.
U64 submit_gate(U64 stream, int device);
void submit_opening(U64 stream, int device, U64 gate);

// Lets any stream do some of its work, drawn with `random`.
void advance_any(U64 random, U64 most);
// Lets all streams of all devices do all of theirs. False for a hang.
bool finish_all();

// Which memory lies below an address: its allocation and the place in it; allocation 0
// where nothing is accessible. For work, which holds the mutex already.
struct Place {
  U64 memory = 0;
  U64 offset = 0;
};
Place place_of(const State& now, U64 at);

// What there is: allocations, mappings, reservations, events, streams, host memory.
enum class Kind { kMemory, kMappings, kReservations, kEvents, kStreams, kHostMemory };
U64 count(Kind kind);

}  // namespace strict
