#include "arena.hpp"

#include <algorithm>

namespace drivetrain {

Block* Arena::release(Block* block) {
  block->become_free_at(clock_.advance());
  if (is_asleep_) {
    block->become(Kind::kClaimed);
    unused_.push_back(block);
    return block;
  }
  block = join_free(block);
  free_.insert(block);
  return block;
}

void Arena::fall_asleep() {
  is_asleep_ = true;
  free_.ascending([&](Block* block) {
    unused_.push_back(block);
    return true;
  });
  for (Block* block : unused_) {
    free_.erase(block);
    block->become(Kind::kClaimed);
  }
}

void Arena::wake_up() {
  is_asleep_ = false;
  for (Block* block : unused_) {
    abandon(block);
  }
  unused_.clear();
}

Extent& Arena::add_extent(Address at, Bytes bytes, Bytes chunk_bytes,
                          std::uint32_t run) {
  extents_.push_back(std::make_unique<Extent>());
  Extent& extent = *extents_.back();
  extent.arena = this;
  extent.at = at;
  extent.run = run;
  extent.chunk_bytes = chunk_bytes;
  extent.shift = static_cast<unsigned>(__builtin_ctzll(chunk_bytes));
  append(extent, nullptr, bytes);
  return extent;
}

void Arena::extend(Extent& extent, Bytes bytes) {
  const auto end = static_cast<std::uint32_t>(extent.pages.size());
  extent.parts.push_back(end);
  append(extent, block_at(extent, extent.address_of(end) - 1), bytes);
}

void Arena::append(Extent& extent, Block* last, Bytes bytes) {
  Block* hole = store_.take();
  hole->at = last == nullptr ? extent.at : last->end();
  hole->size = bytes;
  hole->extent = &extent;
  hole->become(Kind::kHole);
  hole->before = last;
  (last == nullptr ? extent.first : last->after) = hole;
  extent.pages.resize(extent.pages.size() + bytes / extent.chunk_bytes);
  note(hole);
  join_holes(hole);
}

void Arena::lend(Block* block, PageRun run) {
  Extent& extent = *block->extent;
  free_.erase(block);
  const Address end = extent.address_of(run.last);
  if (block->end() > end) {
    free_.insert(split(block, end));
  }
  for (std::uint32_t page = run.first; page < run.last; ++page) {
    extent.pages[page].holds = false;
    extent.pages[page].left_at = block->freed_at();
  }
  Block* hole = block;
  const Address begin = extent.address_of(run.first);
  if (block->at < begin) {
    hole = split(block, begin);
    free_.insert(block);
  }
  hole->become(Kind::kHole);
  join_holes(hole);
}

Block* Arena::claim(Block* first, Address begin, Bytes size) {
  Block* block = first;
  if (block->at < begin) {
    const bool free = block->kind() == Kind::kFree;
    if (free) {
      free_.erase(block);
    }
    Block* front = block;
    block = split(front, begin);
    if (free) {
      free_.insert(front);
      free_.insert(block);
    }
  }
  const Extent& extent = *block->extent;
  const Address end = block->at + size;
  const Address page_end = extent.at + round_up(end - extent.at, extent.chunk_bytes);
  for (Block* last = block;;) {
    if (last->kind() == Kind::kFree) {
      free_.erase(last);
    } else if (last->end() > page_end) {
      split(last, page_end);
    }
    if (last != block) {
      absorb(block);
    }
    if (block->end() >= end) {
      break;
    }
    last = block->after;
  }
  block->become(Kind::kClaimed);
  return block;
}

Block* Arena::fill(Block* claimed, Bytes size) {
  // Whatever the stream has waited for meanwhile, the next tenant comes after it.
  claimed->be_freed_at(clock_.advance());
  if (claimed->size > size) {
    Block* rest = split(claimed, claimed->at + size);
    rest->become(Kind::kFree);
    free_.insert(join_free(rest));
  }
  claimed->become(Kind::kLive);
  return claimed;
}

bool Arena::is_empty() const {
  for (const auto& extent : extents_) {
    for (const Block* block = extent->first; block != nullptr; block = block->after) {
      if (block->kind() != Kind::kFree && block->kind() != Kind::kHole) {
        return false;
      }
    }
  }
  return true;
}

void Arena::abandon(Block* claimed) {
  const Extent& extent = *claimed->extent;
  Block* rest = claimed;
  while (rest != nullptr) {
    Block* block = rest;
    std::uint32_t page = extent.page_of(block->at);
    const bool holds = extent.pages[page].holds;
    while (extent.address_of(page) < block->end() &&
           extent.pages[page].holds == holds) {
      ++page;
    }
    const Address end = extent.address_of(page);
    rest = end < block->end() ? split(block, end) : nullptr;
    block->become(holds ? Kind::kFree : Kind::kHole);
    if (holds) {
      free_.insert(join_free(block));
    } else {
      join_holes(block);
    }
  }
}

Block* Arena::carve(Block* block, Bytes size) {
  if (block->size > size) {
    // Which end is taken cannot be foreseen, so that nothing branches on it.
    const bool upper = shares_pages(size) && next_turn(size) != 0;
    Block* behind = split(block, upper ? block->end() - size : block->at + size);
    Block* rest = upper ? block : behind;
    block = upper ? behind : block;
    free_.insert(rest);
  }
  block->become(Kind::kLive);
  return block;
}

Block* Arena::split(Block* block, Address at) {
  Block* rest = store_.take();
  rest->at = at;
  rest->size = block->end() - at;
  rest->extent = block->extent;
  rest->become_like(*block);
  rest->before = block;
  rest->after = block->after;
  if (rest->after != nullptr) {
    rest->after->before = rest;
  }
  block->after = rest;
  block->size = at - block->at;
  note(rest);
  return rest;
}

void Arena::absorb(Block* block) {
  Block* gone = block->after;
  forget(gone);
  block->size += gone->size;
  block->be_freed_at(std::max(block->freed_at(), gone->freed_at()));
  block->after = gone->after;
  if (block->after != nullptr) {
    block->after->before = block;
  }
  store_.release(gone);
}

void Arena::note(Block* block) {
  Block*& first = block->extent->pages[block->extent->page_of(block->at)].first;
  if (first == nullptr || block->at < first->at) {
    first = block;
  }
}

void Arena::forget(Block* block) {
  const Extent& extent = *block->extent;
  const std::uint32_t page = extent.page_of(block->at);
  Block*& first = block->extent->pages[page].first;
  if (first == block) {
    Block* next = block->after;
    const bool inside = next != nullptr && extent.page_of(next->at) == page;
    first = inside ? next : nullptr;
  }
}

Block* Arena::join_free(Block* block) {
  if (block->after != nullptr && block->after->kind() == Kind::kFree) {
    free_.erase(block->after);
    absorb(block);
  }
  if (block->before != nullptr && block->before->kind() == Kind::kFree) {
    block = block->before;
    free_.erase(block);
    absorb(block);
  }
  return block;
}

Block* Arena::join_holes(Block* hole) {
  if (hole->after != nullptr && hole->after->kind() == Kind::kHole) {
    absorb(hole);
  }
  if (hole->before != nullptr && hole->before->kind() == Kind::kHole) {
    hole = hole->before;
    absorb(hole);
  }
  return hole;
}

}  // namespace drivetrain
