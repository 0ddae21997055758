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

// What is shared with whoever watches a write. The watcher sets `stop`, and the write
// ends before its next block with ECANCELED.
struct Progress {
  std::uint64_t done;  // bytes
  std::uint64_t stop;
};

// How much one write takes; a multiple of the bytes that a checksum covers.
constexpr std::uint64_t kWriteBytes = std::uint64_t{16} << 20;

// Writes `size` bytes from `data` to the beginning of a file on several threads, and
// the CRC-32C of every `block` bytes to `checksums`.
//
// With O_DIRECT set on `fd`, `data` must be a multiple of 4096, and memory up to the
// next such multiple behind `size` is written too and cut off. A file system that
// refuses such writes, at the first one or at a later one, gets ordinary ones.
WriteResult write_file(int fd, const void* data, std::uint64_t size,
                       std::uint64_t block, int num_threads, std::uint32_t* checksums,
                       Progress* progress);

// Reads `size` bytes of a file from `at` on several threads. Returns errno, or 0; EIO
// for a file that ends before.
int read_file(int fd, void* data, std::uint64_t size, std::uint64_t at,
              int num_threads);

// The checksums of blocks, without a file.
void checksum_blocks(const void* data, std::uint64_t size, std::uint64_t block,
                     int num_threads, std::uint32_t* checksums);

}  // namespace drivetrain
