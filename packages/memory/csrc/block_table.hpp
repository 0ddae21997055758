// Live blocks by address: an open-addressing hash table.

#pragma once

#include <cstdint>
#include <vector>

#include "block.hpp"

namespace drivetrain {

class BlockTable {
 public:
  BlockTable() : slots_(1024) {}

  void insert(Block* block) {
    if (2 * (size_ + 1) > slots_.size()) {
      grow();
    }
    put(block);
    ++size_;
  }

  // The live block that begins at an address; null when there is none.
  Block* find(Address at) const {
    for (std::size_t i = slot_of(at); slots_[i] != nullptr; i = next(i)) {
      if (slots_[i]->at == at) {
        return slots_[i];
      }
    }
    return nullptr;
  }

  // Removes and returns the live block that begins at an address; null when there is
  // none.
  Block* remove(Address at) {
    std::size_t hole = slot_of(at);
    while (slots_[hole] != nullptr && slots_[hole]->at != at) {
      hole = next(hole);
    }
    Block* found = slots_[hole];
    if (found == nullptr) {
      return nullptr;
    }
    // Those behind move up, unless they would come to lie before their own slot.
    for (std::size_t i = next(hole); slots_[i] != nullptr; i = next(i)) {
      const std::size_t own = slot_of(slots_[i]->at);
      if (((i - own) & mask()) >= ((i - hole) & mask())) {
        slots_[hole] = slots_[i];
        hole = i;
      }
    }
    slots_[hole] = nullptr;
    --size_;
    return found;
  }

  std::size_t size() const { return size_; }

  template <class F>
  void each(F f) const {
    for (Block* block : slots_) {
      if (block != nullptr) {
        f(*block);
      }
    }
  }

 private:
  std::size_t mask() const { return slots_.size() - 1; }
  std::size_t next(std::size_t i) const { return (i + 1) & mask(); }

  std::size_t slot_of(Address at) const {
    // Fibonacci hashing: the high bits of the product are the mixed ones.
    return (at / kUnit * 0x9E3779B97F4A7C15u >> 32) & mask();
  }

  void put(Block* block) {
    std::size_t i = slot_of(block->at);
    while (slots_[i] != nullptr) {
      i = next(i);
    }
    slots_[i] = block;
  }

  void grow() {
    std::vector<Block*> old(2 * slots_.size());
    old.swap(slots_);
    for (Block* block : old) {
      if (block != nullptr) {
        put(block);
      }
    }
  }

  std::vector<Block*> slots_;
  std::size_t size_ = 0;
};

}  // namespace drivetrain
