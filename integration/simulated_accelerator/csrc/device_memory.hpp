#pragma once

#include <cstddef>

namespace sim {

// Memory of a device: one anonymous file, mapped twice.
//
// A tensor's address lies in the first mapping, which nobody may touch: a host that
// reads device memory gets SIGSEGV. The threads of the streams use the second one.

// The device's first address. The memory is mapped at the first call.
char* device_base(int device);

// Returns where the device's own threads find what is at an address.
void* device_to_shadow(int device, const void* address);

// Likewise for any address; one that is no device's is returned as it is.
void* to_shadow(const void* address);

// The device that an address belongs to; -1 if it is none's.
int device_of(const void* address);

// Gives the pages of a range back to the host.
void discard_pages(int device, std::size_t offset, std::size_t size);

}  // namespace sim
