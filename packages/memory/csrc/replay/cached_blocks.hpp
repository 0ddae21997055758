// Blocks as PyTorch's caching allocator keeps them: neighbours in a segment, free ones
// in a set by size and address.

#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "../units.hpp"

namespace drivetrain {

// Requests are rounded to this.
constexpr Bytes kSmallest = 512;
// Up to here requests are small, and share segments of their own.
constexpr Bytes kSmallLimit = Bytes{1} << 20;
// What the device gives for small blocks at a time.
constexpr Bytes kSmallSegment = Bytes{2} << 20;

struct CachedBlock {
  Address at = 0;
  Bytes size = 0;
  CachedBlock* before = nullptr;
  CachedBlock* after = nullptr;
  unsigned stream = 0;
  bool small = false;
  bool live = false;
  // Expandable segments only: whether memory is mapped here.
  bool mapped = true;
};

struct BySizeThenAddress {
  bool operator()(const CachedBlock* a, const CachedBlock* b) const {
    return a->size != b->size ? a->size < b->size : a->at < b->at;
  }
};

using CachedPool = std::set<CachedBlock*, BySizeThenAddress>;

// Cuts a block; the rest, which is returned, lies behind it.
inline CachedBlock* cut(CachedBlock* block, Bytes size) {
  auto* rest = new CachedBlock(*block);
  rest->at = block->at + size;
  rest->size = block->size - size;
  rest->before = block;
  if (rest->after != nullptr) {
    rest->after->before = rest;
  }
  block->after = rest;
  block->size = size;
  return rest;
}

// A block takes over the one behind it.
inline void swallow(CachedBlock* block) {
  CachedBlock* gone = block->after;
  block->size += gone->size;
  block->after = gone->after;
  if (block->after != nullptr) {
    block->after->before = block;
  }
  delete gone;
}

}  // namespace drivetrain
