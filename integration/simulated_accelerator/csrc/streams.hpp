#pragma once

#include <cstdint>
#include <vector>

#include "stream_queue.hpp"

namespace sim {

inline constexpr std::int64_t kDefaultStream = 0;

// Streams by device; the current device and the current streams of this thread.

int device_count();
int current_device();
// Makes a device the current one and returns the previous one; -1 changes nothing.
int exchange_device(int device);
// Raises unless there is such a device.
void check_index(int device);

std::int64_t current_stream(int device);
std::int64_t exchange_stream(int device, std::int64_t id);
// Returns the default stream on a device without others.
std::int64_t new_stream(int device);
// A stream that no program gets, for collectives.
std::int64_t new_internal_stream(int device);

// The queue of a stream. It starts the stream's thread at the first call.
StreamQueue& stream_queue(int device, std::int64_t id);
StreamQueue& current_queue(int device);

// The streams that have been used so far.
std::vector<StreamQueue*> queues_of(int device);
void synchronize_device(int device);

// Whether any device has been used in this process.
bool is_initialized();
bool is_initialized(int device);
// Marks a device as used; it raises in a process forked off one that has used it.
void initialize(int device);
// Whether this process was forked off one that has used a device.
bool is_in_bad_fork();

// Drops all queued work. The interpreter calls it when it ends.
void quiesce_all();

}  // namespace sim
