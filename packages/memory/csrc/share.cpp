// Memory of an allocator that other processes have too.

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "allocator.hpp"
#include "error.hpp"

namespace drivetrain {

namespace {

// Left for what else a process opens.
constexpr std::size_t kOthers = 512;

// A large block has one for each chunk, which is more than is usual. The process's soft
// limit rises, as far as the hard one allows; beyond it the driver refuses, in words.
void allow_descriptors(std::size_t count) {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && count + kOthers > limit.rlim_cur) {
    limit.rlim_cur = std::min<rlim_t>(2 * (count + kOthers), limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace

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
    std::size_t descriptors = ceil_div(block->size, chunk_) + 2;
    for (const auto& [other, lent] : lent_) {
      descriptors += lent.chunks.size() + 1;
    }
    allow_descriptors(descriptors);
    Lent& lent = lent_[block];
    try {
      for (std::uint32_t page = first; extent.address_of(page) < block->end(); ++page) {
        const Handle chunk = pool_[extent.pages[page].chunk].handle;
        lent.chunks.push_back(driver_.share(chunk));
      }
    } catch (const DriverError& error) {
      const std::size_t needed = lent.chunks.size();
      lent_.erase(block);
      throw DriverError(std::string(error.what()) + "; " + std::to_string(needed) +
                        " chunks have a file descriptor each by then, see ulimit -n");
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
