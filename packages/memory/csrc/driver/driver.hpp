// What the allocator needs of a device: ranges of addresses, physical chunks that can
// be mapped there, and events that order streams.

#pragma once

#include <cstddef>
#include <cstdint>

#include "../units.hpp"

namespace drivetrain {

// A physical chunk, as its driver names it.
using Handle = std::uint64_t;
// A CUDA stream, or whatever else a driver executes in order.
using Stream = std::uintptr_t;
// Names a point in a stream; never 0.
using Event = std::uintptr_t;

// The allocator calls a driver from one thread at a time. All but `create` throw
// DriverError when the device refuses, and DeviceFull when that is for lack of memory.
class Driver {
 public:
  virtual ~Driver() = default;

  // The size of every chunk, a power of two; ranges are multiples of it.
  virtual Bytes chunk_bytes() const = 0;

  // What the device has in all, and what nobody uses of it.
  virtual Bytes total_bytes() = 0;
  virtual Bytes free_bytes() = 0;

  // Returns a range of addresses with nothing mapped.
  virtual Address reserve(Bytes bytes) = 0;
  // Reserves the addresses behind a range; false where they are not to be had.
  virtual bool extend(Address end, Bytes bytes) = 0;
  virtual void unreserve(Address at, Bytes bytes) = 0;

  // Makes a chunk; false when the device has no memory left.
  virtual bool create(Handle* chunk) = 0;
  virtual void destroy(Handle chunk) = 0;

  // Maps chunks one behind the other, readable and writable, or none of them. A chunk
  // may be mapped at several addresses; what is written through one is read through
  // all.
  virtual void map(Address at, const Handle* chunks, std::size_t count) = 0;
  virtual void unmap(Address at, std::size_t count) = 0;
  // How many pages can be mapped at a time.
  virtual std::uint64_t max_mapped() { return ~std::uint64_t{0}; }

  // An event after all that was given to the stream so far.
  virtual Event record(Stream stream) = 0;
  virtual bool done(Event event) = 0;
  // What is given to the stream from now on waits for the event.
  virtual void wait(Stream stream, Event event) = 0;
  // The host waits.
  virtual void synchronize(Event event) = 0;
  virtual void forget(Event event) = 0;

  // Whether the stream's work is being captured into a graph, or must be left alone
  // for the capture of another. Throws StreamGone for one that was destroyed.
  virtual bool capturing(Stream stream) = 0;

  // A file descriptor of a chunk, by which another process maps it too.
  virtual int share(Handle chunk) = 0;

  // The host waits for all that was given to the device, also to streams that were
  // destroyed since. Returns false where it may not, while a graph is captured. Throws
  // DriverError where the device refuses.
  virtual bool synchronize_all() = 0;
  // A stream uses memory of the device from now on.
  virtual void meet(Stream) {}

  // Memory of the host that the device copies to and from, and these copies. The host
  // waits for them.
  virtual char* take_host(Bytes bytes) = 0;
  virtual void give_host(char* memory) = 0;
  virtual void read(char* to, Address from, Bytes bytes) = 0;
  virtual void write(Address to, const char* from, Bytes bytes) = 0;
};

}  // namespace drivetrain
