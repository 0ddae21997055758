// The blocks of one stream: taken by best fit, given back, and joined with their free
// neighbours.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "block.hpp"
#include "block_store.hpp"
#include "free_index.hpp"
#include "size_history.hpp"

namespace drivetrain {

// Every tenant of an arena uses its memory on the arena's stream first, so that a block
// goes from one tenant to the next with no other order than the stream's own.
class Arena {
 public:
  // Args:
  //   clock: The stream.
  //   store: Where blocks live.
  //   graph: The graph or pool that it is private to; 0 for none.
  //   tag: What its memory sleeps and wakes with; 0 for none.
  //   chunk: Of the device, in bytes, if its blocks are larger than that; else 0.
  Arena(StreamClock& clock, BlockStore& store, std::uint64_t graph, std::uint64_t tag,
        Bytes chunk)
      : clock_(clock), store_(store), graph_(graph), tag_(tag), chunk_(chunk) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  StreamClock& clock() const { return clock_; }
  std::uint64_t graph() const { return graph_; }
  std::uint64_t tag() const { return tag_; }
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

  // A live block is free from now on. Returns the free block that it is part of, or
  // itself where it sleeps.
  Block* release(Block* block);

  // Returns a live block that was a free one of just that size; null if there is none.
  Block* take_exact(Bytes size) {
    Block* block = free_.best_fit(size);
    if (block == nullptr || block->size != size) {
      return nullptr;
    }
    free_.erase(block);
    block->become(Kind::kLive);
    return block;
  }

  // Adds a reserved range to a run, all of it a hole.
  Extent& add_extent(Address at, Bytes bytes, Bytes chunk_bytes, std::uint32_t run);

  // Adds what was reserved behind an extent.
  void extend(Extent& extent, Bytes bytes);

  // Whole pages of a free block no longer hold their chunks. What lies before them
  // stays in the same block.
  void lend(Block* block, PageRun run);

  // Makes one block of free blocks and holes, one behind the other, that nobody else
  // uses meanwhile. It begins in the block `first`, at `begin`, which is the beginning
  // of a page if that block is a hole, and holds `size` bytes; where it ends in a hole,
  // it ends with a page.
  Block* claim(Block* first, Address begin, Bytes size);

  // A claimed block, all of whose pages hold chunks by now, becomes a live one of the
  // size; the rest is free.
  Block* fill(Block* claimed, Bytes size);

  // In which of two runs the next block of a size lies, 0 or 1: where a program keeps
  // every second one, the others leave whole pages.
  std::uint32_t next_turn(Bytes size) {
    // Sizes share a bit with others, which does no harm.
    const std::uint64_t bit = size / kUnit * 0x9E3779B97F4A7C15u >> 58;
    turns_ ^= std::uint64_t{1} << bit;
    return static_cast<std::uint32_t>(turns_ >> bit & 1);
  }

  // Whether the blocks of a size share their first and last page with neighbours, which
  // is much of what they have.
  bool shares_pages(Bytes size) const {
    return size < kFewChunks * chunk_ && (size & (chunk_ - 1)) != 0;
  }

  // Where blocks were put together before.
  SizeHistory& size_history() { return size_history_; }

  // Undoes a claim: what holds a chunk is free, the rest are holes.
  void abandon(Block* claimed);

  // What was private to a graph is everybody's.
  void publish() { graph_ = 0; }

  // What nobody uses is a graph's from now on.
  void serve(std::uint64_t graph) { graph_ = graph; }

  bool is_large() const { return chunk_ != 0; }

  // Whether all of it is free.
  bool is_empty() const;

  // Nothing is free, and what is freed stays claimed, until it wakes up: by then pages
  // hold chunks as far as live blocks need them.
  void fall_asleep();
  void wake_up();
  bool is_asleep() const { return is_asleep_; }

 private:
  static constexpr Bytes kFewChunks = 2;

  // Cuts a block that is in no bin; the rest is free.
  Block* carve(Block* block, Bytes size);
  // Puts a hole behind all that an extent has.
  void append(Extent& extent, Block* last, Bytes bytes);
  // Makes a block behind another one, from what it has beyond an address.
  Block* split(Block* block, Address at);
  // The block takes over the one behind it.
  void absorb(Block* block);
  // The page that a block begins in knows of it, or knows no longer.
  static void note(Block* block);
  static void forget(Block* block);
  // A free block is joined with free neighbours, which leave the index.
  Block* join_free(Block* block);
  Block* join_holes(Block* hole);

  StreamClock& clock_;
  BlockStore& store_;
  std::uint64_t graph_;
  std::uint64_t tag_;
  Bytes chunk_;
  std::uint64_t turns_ = 0;
  bool is_asleep_ = false;
  // What was free when it fell asleep, or became so since.
  std::vector<Block*> unused_;
  FreeIndex free_;
  SizeHistory size_history_;
  std::vector<std::unique_ptr<Extent>> extents_;
};

}  // namespace drivetrain
