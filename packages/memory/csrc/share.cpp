// Memory of an allocator that other processes have too.

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "allocator.hpp"
#include "error.hpp"

namespace drivetrain {

Allocator::Lent::~Lent() {
  for (const int file : chunks) {
    close(file);
  }
}

Shared Allocator::share(Address at) {
  const std::lock_guard<Lock> lock(lock_);
  Block* block = live_around(at);
  if (block == nullptr || block->extent->arena->is_asleep()) {
    throw MisuseError("no live block that is awake holds address " +
                      std::to_string(at) +
                      "; memory of another process is not shared again: clone() it");
  }
  const Extent& extent = *block->extent;
  const std::uint32_t first = extent.page_of(block->at);
  if (lent_.count(block) == 0) {
    Lent& lent = lent_[block];
    try {
      for (std::uint32_t page = first; extent.address_of(page) < block->end(); ++page) {
        const Handle chunk = pool_[extent.pages[page].chunk].handle;
        lent.chunks.push_back(driver_.share(chunk));
      }
    } catch (...) {
      lent_.erase(block);
      throw;
    }
    block->share();
  }
  Lent& lent = lent_[block];
  lent.lease.send();
  return {lent.chunks, lent.lease.file(), at - extent.address_of(first)};
}

bool Allocator::is_lent(const Block* block) {
  const auto found = lent_.find(block);
  if (found != lent_.end() && !found->second.lease.in_use()) {
    lent_.erase(found);
    return false;
  }
  return found != lent_.end();
}

bool Allocator::lends(std::uint64_t tag) {
  std::vector<const Block*> blocks;
  for (const auto& [block, lent] : lent_) {
    if (block->extent->arena->tag() == tag) {
      blocks.push_back(block);
    }
  }
  return std::any_of(blocks.begin(), blocks.end(),
                     [&](const Block* block) { return is_lent(block); });
}

}  // namespace drivetrain
