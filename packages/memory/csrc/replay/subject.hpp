// An allocator under replay: this one, or a model of another.

#pragma once

#include <cstdint>
#include <vector>

#include "../units.hpp"

namespace drivetrain {

// What a subject did beside serving requests.
struct Effort {
  Bytes reserved_bytes = 0;
  Bytes peak_reserved_bytes = 0;
  // Physical memory that was mapped or allocated again, beyond its first use.
  Bytes remapped_bytes = 0;
  // Calls to the driver.
  std::uint64_t driver_calls = 0;
  // Times that all that was cached went back to the device, which waits for the device.
  std::uint64_t flushes = 0;
  // Times that a stream waited for another one.
  std::uint64_t stream_waits = 0;
};

// Memory that was taken of the device for a stream, or given back.
struct SegmentEvent {
  // Negative for what was given back.
  std::int64_t bytes;
  std::uint64_t stream;
};

class Subject {
 public:
  virtual ~Subject() = default;

  // Returns false when the request does not fit.
  virtual bool allocate(std::uint32_t id, Bytes size, unsigned stream) = 0;
  virtual void free(std::uint32_t id) = 0;
  virtual void record_stream(std::uint32_t id, unsigned stream) = 0;
  virtual Effort effort() = 0;
  // In their order; empty for a subject that does not take memory in segments.
  virtual std::vector<SegmentEvent> segment_events() { return {}; }
};

}  // namespace drivetrain
