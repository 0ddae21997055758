// Writes memory to a file past the page cache, and checks it while it goes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace drivetrain {

struct WriteResult {
  int error;         // errno of the first write that failed, or 0
  std::uint64_t at;  // where in the file it failed
  int was_direct;    // whether the page cache was passed by to the end
};

// Writes `size` bytes from `data` to the beginning of a file, in blocks of `block`
// bytes on several threads, and their CRC-32C checksums to `checksums`, one a block.
//
// With O_DIRECT set on `fd`, `data` and `block` must be multiples of 4096, and memory
// up to the next such multiple behind `size` is written too and cut off. A file system
// that refuses such writes, at the first one or at a later one, gets ordinary ones.
WriteResult write_file(int fd, const void* data, std::uint64_t size,
                       std::uint64_t block, int num_threads, std::uint32_t* checksums);

// The checksums of blocks, without a file.
void checksum_blocks(const void* data, std::uint64_t size, std::uint64_t block,
                     int num_threads, std::uint32_t* checksums);

}  // namespace drivetrain
