#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>

namespace sim {

// The allocator of device memory, as torch knows it.
c10::DeviceAllocator* allocator();

// What is allocated on a stream between these two belongs to a graph, which keeps it
// until `end_pool`: a replay writes to the same addresses.
void begin_capture_pool(int device, std::int64_t stream, std::int64_t pool);
void end_capture(int device, std::int64_t stream);
void end_pool(int device, std::int64_t pool);

}  // namespace sim
