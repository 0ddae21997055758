// The blocks of one stream: taken, given back, and joined with their free neighbours.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "block.hpp"
#include "block_store.hpp"
#include "free_index.hpp"

namespace drivetrain {

// Every tenant of an arena uses its memory on the arena's stream first, so that a block
// goes from one tenant to the next with no other order than the stream's own.
class Arena {
 public:
  // Args:
  //   clock: The stream.
  //   store: Where blocks live.
  //   graph: The graph or pool that it is private to; 0 for none.
  Arena(StreamClock& clock, BlockStore& store, std::uint64_t graph)
      : clock_(clock), store_(store), graph_(graph) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  StreamClock& clock() const { return clock_; }
  std::uint64_t graph() const { return graph_; }
  const FreeIndex& free() const { return free_; }
  const std::vector<std::unique_ptr<Extent>>& extents() const { return extents_; }

  // Returns a live block of the size; null when no free one is large enough.
  Block* take(Bytes size) {
    Block* block = free_.best_fit(size);
    if (block == nullptr) {
      return nullptr;
    }
    free_.erase(block);
    return carve(block, size);
  }

  // A live block is free from now on.
  void give(Block* block);

  // Adds a reserved range, all of it a hole.
  Extent& add_extent(Address at, Bytes bytes, Bytes chunk_bytes);

  // Whole pages of a free block no longer hold their chunks. What lies before them
  // stays in the same block.
  void lend(Block* block, PageRun run);

  // Makes one block of free blocks and holes, one behind the other, that nobody else
  // uses meanwhile. It begins with `first`, or at the page `begin` of it if that is a
  // hole, and holds `size` bytes; where it ends in a hole, it ends with a page.
  Block* claim(Block* first, Address begin, Bytes size);

  // A claimed block, all of whose pages hold chunks by now, becomes a live one of the
  // size; the rest is free.
  Block* fill(Block* claimed, Bytes size);

  // Undoes a claim: what holds a chunk is free, the rest are holes.
  void abandon(Block* claimed);

  // What was private to a graph is everybody's.
  void publish() { graph_ = 0; }

 private:
  // Cuts a block that is in no bin; the rest is free.
  Block* carve(Block* block, Bytes size);
  // Makes a block behind another one, from what it has beyond an address.
  Block* split(Block* block, Address at);
  // The block takes over the one behind it.
  void absorb(Block* block);
  // A free block is joined with free neighbours, which leave the index.
  Block* join_free(Block* block);
  Block* join_holes(Block* hole);

  StreamClock& clock_;
  BlockStore& store_;
  std::uint64_t graph_;
  FreeIndex free_;
  std::vector<std::unique_ptr<Extent>> extents_;
};

}  // namespace drivetrain
