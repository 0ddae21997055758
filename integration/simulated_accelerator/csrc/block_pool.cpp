#include "block_pool.hpp"

#include <iterator>

namespace sim {

BlockPool::BlockPool(std::size_t size) {
  const Block all{.offset = 0, .size = size};
  blocks_.emplace(0, all);
  add_free(all);
}

std::optional<std::size_t> BlockPool::find(std::size_t size, Owner owner) const {
  const auto blocks = free_.find(owner);
  if (blocks == free_.end()) return std::nullopt;
  const auto best = blocks->second.lower_bound({size, 0});
  if (best == blocks->second.end()) return std::nullopt;
  return best->second;
}

std::optional<std::size_t> BlockPool::take(std::size_t size, std::size_t requested,
                                           Owner owner) {
  std::optional<std::size_t> offset = find(size, owner);
  if (!offset) offset = find(size, kAnybody);
  if (!offset) return std::nullopt;
  Block& block = blocks_.at(*offset);
  remove_free(block);
  if (block.owner == kAnybody) reserved_bytes_ += size;
  if (block.size > size) {
    const Block rest{
        .offset = block.offset + size, .size = block.size - size, .owner = block.owner};
    blocks_.emplace(rest.offset, rest);
    add_free(rest);
    block.size = size;
  }
  block.requested = requested;
  block.owner = owner;
  block.used = true;
  used_bytes_ += size;
  return offset;
}

void BlockPool::free(std::size_t offset) {
  const auto block = blocks_.find(offset);
  block->second.used = false;
  used_bytes_ -= block->second.size;
  if (block->second.owner == kAnybody) reserved_bytes_ -= block->second.size;
  add_free(block->second);
  merge(block);
}

BlockPool::Blocks::iterator BlockPool::merge(Blocks::iterator block) {
  const auto join = [&](Blocks::iterator left, Blocks::iterator right) {
    remove_free(left->second);
    remove_free(right->second);
    left->second.size += right->second.size;
    blocks_.erase(right);
    add_free(left->second);
    return left;
  };
  const auto can_join = [&](const Block& a, const Block& b) {
    return !a.used && !b.used && a.owner == b.owner;
  };
  const auto next = std::next(block);
  if (next != blocks_.end() && can_join(block->second, next->second)) {
    block = join(block, next);
  }
  if (block != blocks_.begin()) {
    const auto previous = std::prev(block);
    if (can_join(previous->second, block->second)) block = join(previous, block);
  }
  return block;
}

void BlockPool::give_to_anybody(
    const std::function<bool(Owner)>& rule,
    const std::function<void(std::size_t, std::size_t)>& given) {
  for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
    Block& it = block->second;
    if (it.used || it.owner == kAnybody || !rule(it.owner)) continue;
    remove_free(it);
    reserved_bytes_ -= it.size;
    it.owner = kAnybody;
    given(it.offset, it.size);
    add_free(it);
    block = merge(block);
  }
}

void BlockPool::change_owner(Owner from, Owner to) {
  for (auto& [offset, block] : blocks_) {
    if (block.used && block.owner == from) block.owner = to;
  }
}

void BlockPool::add_free(const Block& block) {
  free_[block.owner].emplace(block.size, block.offset);
}

void BlockPool::remove_free(const Block& block) {
  free_[block.owner].erase({block.size, block.offset});
}

}  // namespace sim
