// CRC-32C (Castagnoli), as iSCSI and ext4 use it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace drivetrain {

// The checksum of `size` bytes that follow those with the checksum `crc`; 0 to start.
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t size);

// Whether the processor's own instruction computes it.
bool crc32c_is_hardware();

}  // namespace drivetrain
