// Memory of an allocator that other processes have too.

#include <algorithm>
#include <iterator>
#include <mutex>
#include <string>

#include "allocator.hpp"
#include "error.hpp"

namespace drivetrain {

Shared Allocator::share(Address at) {
  const std::lock_guard<Lock> lock(lock_);
  Block* block = live_around(at);
  if (block == nullptr) {
    throw MisuseError("no live block holds address " + std::to_string(at) +
                      "; memory of another process is not shared again: clone() it");
  }
  const Arena& arena = *block->extent->arena;
  if (arena.is_asleep()) {
    throw MisuseError(process_->memory_of(arena.tag()) +
                      " sleeps: wake it before it is shared");
  }
  const auto found = lent_.find(block);
  Lent& lent = found != lent_.end() ? found->second : lend(block);
  lent.lease.send();
  const Extent& extent = *block->extent;
  Shared shared{{}, lent.lease.id(), at - extent.address_of(extent.page_of(block->at))};
  for (const Descriptor& chunk : lent.chunks) {
    shared.chunks.push_back(chunk.get());
  }
  return shared;
}

Allocator::Lent& Allocator::lend(Block* block) {
  const Extent& extent = *block->extent;
  for (;;) {
    std::size_t needed = 0;
    try {
      Lent& lent = lent_[block];
      for (std::uint32_t page = extent.page_of(block->at);
           extent.address_of(page) < block->end(); ++page) {
        needed = lent.chunks.size();
        lent.chunks.emplace_back(driver_.share(pool_[extent.pages[page].chunk].handle));
      }
      block->share();
      return lent;
    } catch (const DriverError& error) {
      lent_.erase(block);
      if (!end_leases()) {
        throw DriverError(std::string(error.what()) + "; " + std::to_string(needed) +
                          " chunks of it and those of " + std::to_string(lent_.size()) +
                          " other blocks have a file descriptor each, see ulimit -n");
      }
    }
  }
}

bool Allocator::end_leases() {
  const std::size_t before = lent_.size();
  for (auto lent = lent_.begin(); lent != lent_.end();) {
    lent = lent->second.lease.end() ? lent_.erase(lent) : std::next(lent);
  }
  return lent_.size() < before;
}

bool Allocator::is_lent(const Block* block) {
  const auto found = lent_.find(block);
  if (found != lent_.end() && found->second.lease.end()) {
    lent_.erase(found);
    return false;
  }
  return found != lent_.end();
}

bool Allocator::lends(std::uint64_t tag) {
  end_leases();
  return std::any_of(lent_.begin(), lent_.end(), [&](const auto& lent) {
    return lent.first->extent->arena->tag() == tag;
  });
}

}  // namespace drivetrain
