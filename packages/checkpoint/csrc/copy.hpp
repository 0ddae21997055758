// Copies many blocks of memory at once, on several threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace drivetrain {

struct Block {
  const void* from;
  void* to;
  std::uint64_t size;
};

// Copies all blocks; they must not overlap. Threads take pieces of 4 MiB from a common
// queue, so that one that is held up by other processes holds up no other.
void copy_blocks(const Block* blocks, std::size_t num_blocks, int num_threads);

}  // namespace drivetrain
