// Where blocks of the book-keeping live: taken and given back in constant time.

#pragma once

#include <array>
#include <memory>
#include <vector>

#include "block.hpp"

namespace drivetrain {

class BlockStore {
 public:
  Block* take() {
    if (free_ == nullptr) {
      grow();
    }
    Block* block = free_;
    free_ = block->next;
    *block = Block{};
    return block;
  }

  void release(Block* block) {
    block->next = free_;
    free_ = block;
  }

 private:
  static constexpr std::size_t kSlab = 512;

  void grow() {
    slabs_.push_back(std::make_unique<std::array<Block, kSlab>>());
    for (Block& block : *slabs_.back()) {
      release(&block);
    }
  }

  std::vector<std::unique_ptr<std::array<Block, kSlab>>> slabs_;
  Block* free_ = nullptr;
};

}  // namespace drivetrain
