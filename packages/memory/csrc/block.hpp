// A run of addresses in an arena, and the pages below it.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "stream_clock.hpp"
#include "units.hpp"

namespace drivetrain {

class Arena;
struct Block;

using ChunkId = std::uint32_t;
constexpr ChunkId kNoChunk = ~ChunkId{0};

// A page is where a chunk can be mapped. A chunk may be mapped at several pages, of
// which at most one holds it: only there may blocks live. The others keep the mapping,
// so that the chunk can come back without a call to the driver.
struct Page {
  ChunkId chunk = kNoChunk;
  bool holds = false;
  // When the stream of the arena last had a block here; the page may not be unmapped
  // before that.
  std::uint64_t left_at = 0;
  // The lowest block that begins here; null when none does.
  Block* first = nullptr;
};

// A reserved range of addresses.
struct Extent {
  Arena* arena;
  Address at;
  Bytes chunk_bytes;
  // The power of two that a chunk is.
  unsigned shift;
  // In which of the arena's runs its blocks lie.
  std::uint32_t run;
  std::vector<Page> pages;
  // The pages at which it was extended. What was reserved at once is freed at once, and
  // no call concerns two of such parts.
  std::vector<std::uint32_t> parts;
  // Whether the addresses behind it are not to be had.
  bool is_fixed = false;
  Block* first = nullptr;
  // No page from here on was ever mapped.
  std::uint32_t high = 0;

  std::uint32_t page_of(Address address) const {
    return static_cast<std::uint32_t>((address - at) >> shift);
  }
  Address address_of(std::uint32_t page) const { return at + page * chunk_bytes; }
  bool begins_part(std::uint32_t page) const {
    return std::binary_search(parts.begin(), parts.end(), page);
  }
};

enum class Kind : std::uint8_t {
  kFree,     // nobody's; every page holds its chunk
  kLive,     // a tenant's
  kPending,  // freed, while another stream may still use it
  kHole,     // whole pages, none of which holds a chunk
  kClaimed,  // being filled for a request
};

// The blocks of an extent lie one behind the other and cover it. No two free ones are
// neighbours, nor two holes. Holes begin and end with pages.
struct alignas(64) Block {
  Address at = 0;
  Bytes size = 0;
  Block* before = nullptr;
  Block* after = nullptr;
  // Neighbours in a bin of the free index.
  Block* previous = nullptr;
  Block* next = nullptr;
  Extent* extent = nullptr;

  Kind kind() const { return static_cast<Kind>(state_ & kKind); }
  void become(Kind kind) {
    state_ = (state_ & ~kKind) | static_cast<std::uint64_t>(kind);
  }

  // Whether other streams use it too.
  bool shared() const { return (state_ & kShared) != 0; }
  void share() { state_ |= kShared; }

  // When it became free, on the stream of its arena.
  std::uint64_t freed_at() const { return state_ >> kTime; }
  void be_freed_at(std::uint64_t time) {
    state_ = (state_ & (kKind | kShared)) | time << kTime;
  }

  // It is free, and nobody's but the stream's of its arena.
  void become_free_at(std::uint64_t time) {
    state_ = static_cast<std::uint64_t>(Kind::kFree) | time << kTime;
  }

  // It is what another block is, but that nobody shares it.
  void become_like(const Block& other) { state_ = other.state_ & ~kShared; }

  Address end() const { return at + size; }

 private:
  static constexpr std::uint64_t kKind = 7;
  static constexpr std::uint64_t kShared = 8;
  static constexpr unsigned kTime = 4;

  // Kind, whether it is shared, and time. One word that is always written whole: a
  // processor waits where it reads at once what was just written in parts.
  std::uint64_t state_ = 0;
};

static_assert(sizeof(Block) == 64, "a cache line: an operation touches several blocks");

// Returns the block that an address of an extent lies in.
inline Block* block_at(const Extent& extent, Address address) {
  std::uint32_t page = extent.page_of(address);
  Block* block = extent.pages[page].first;
  while (block == nullptr || block->at > address) {
    block = extent.pages[--page].first;
  }
  while (block->end() <= address) {
    block = block->after;
  }
  return block;
}

// The whole pages in [begin, end): first and one past the last; equal when there is
// none.
struct PageRun {
  std::uint32_t first;
  std::uint32_t last;

  std::uint32_t count() const { return last - first; }
};

inline PageRun whole_pages(const Block& block) {
  const Extent& extent = *block.extent;
  const Bytes begin = block.at - extent.at;
  const auto first = static_cast<std::uint32_t>(ceil_div(begin, extent.chunk_bytes));
  const auto last =
      static_cast<std::uint32_t>((begin + block.size) / extent.chunk_bytes);
  return {first, last < first ? first : last};
}

}  // namespace drivetrain
