// How a vector is cut: into a slice for each channel, a slice into chunks, and a chunk
// into segments, which are what travels. Cuts fall between elements.

#pragma once

#include <cstdint>

namespace drivetrain {

struct Range {
  std::uint64_t begin;
  std::uint64_t end;
};

struct Geometry {
  std::uint64_t num_elements;
  std::uint64_t element_size;
  std::uint32_t num_channels;
  std::int32_t num_chunks;
  std::uint64_t segment_elements;

  std::uint64_t num_segments(std::uint32_t channel, std::int32_t chunk) const {
    const Range whole = elements(channel, chunk);
    return (whole.end - whole.begin + segment_elements - 1) / segment_elements;
  }

  std::uint64_t num_bytes(std::uint32_t channel, std::int32_t chunk) const {
    const Range whole = elements(channel, chunk);
    return (whole.end - whole.begin) * element_size;
  }

  // In bytes.
  Range segment(std::uint32_t channel, std::int32_t chunk, std::uint64_t index) const {
    const Range whole = elements(channel, chunk);
    const std::uint64_t begin = whole.begin + index * segment_elements;
    const std::uint64_t end = begin + segment_elements;
    return {begin * element_size, (end < whole.end ? end : whole.end) * element_size};
  }

 private:
  Range elements(std::uint32_t channel, std::int32_t chunk) const {
    const Range slice = part({0, num_elements}, channel, num_channels);
    return part(slice, static_cast<std::uint64_t>(chunk),
                static_cast<std::uint64_t>(num_chunks));
  }

  static Range part(Range whole, std::uint64_t index, std::uint64_t count) {
    const std::uint64_t size = whole.end - whole.begin;
    const std::uint64_t each = size / count;
    const std::uint64_t rest = size % count;
    const std::uint64_t begin =
        whole.begin + index * each + (index < rest ? index : rest);
    return {begin, begin + each + (index < rest ? 1 : 0)};
  }
};

}  // namespace drivetrain
