#pragma once

#include <c10/core/Allocator.h>

#include "stream_queue.hpp"

namespace sim {

// The allocator of host memory that a copy may read or write later.
c10::Allocator* pinned_allocator();
bool is_pinned(const void* address);

// Notes that a copy which is queued uses a block: it is not used again before that.
void record_pinned_use(const void* address, StreamQueue& queue);

// Makes memory of somebody else's pinned, until it is unregistered; false where a block
// lies there already, or the device pins none. To unregister waits for nothing.
bool register_pinned(void* address, std::size_t size);
bool unregister_pinned(void* address);

// Whether a freed block waits for such copies. A device that does not wait is wrong;
// tests see that they notice it.
void set_pinned_reuse_waits(bool waits);

}  // namespace sim
