// Free blocks by size: best fit in constant time.
//
// Two levels of bins as in TLSF (Masmano et al., 2004): a bin for every size below 64
// units, then 64 bins for every power of two. A bitmap of each level finds the next bin
// that is not empty. Within a bin, a bounded number of blocks is compared, so that the
// fit is the best one wherever a bin is short.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "block.hpp"

namespace drivetrain {

class FreeIndex {
 public:
  void insert(Block* block) {
    const Bin bin = bin_of(block->size);
    Block*& head = heads_[bin.level][bin.sub];
    block->previous = nullptr;
    block->next = head;
    if (head != nullptr) {
      head->previous = block;
    }
    head = block;
    levels_ |= std::uint64_t{1} << bin.level;
    subs_[bin.level] |= std::uint64_t{1} << bin.sub;
  }

  void erase(Block* block) {
    const Bin bin = bin_of(block->size);
    if (block->previous != nullptr) {
      block->previous->next = block->next;
    } else {
      heads_[bin.level][bin.sub] = block->next;
      if (block->next == nullptr) {
        subs_[bin.level] &= ~(std::uint64_t{1} << bin.sub);
        if (subs_[bin.level] == 0) {
          levels_ &= ~(std::uint64_t{1} << bin.level);
        }
      }
    }
    if (block->next != nullptr) {
      block->next->previous = block->previous;
    }
  }

  // The smallest block of at least `size` bytes, the lowest address among equals, as
  // far as a bounded search tells; null when there is none.
  Block* best_fit(Bytes size) const {
    const Bin bin = bin_of(size);
    Block* found = best_in(heads_[bin.level][bin.sub], size);
    if (found != nullptr) {
      return found;
    }
    // All in a larger bin fit, and differ by a sixtieth at most.
    const std::uint64_t larger = subs_[bin.level] & above(bin.sub);
    if (larger != 0) {
      return heads_[bin.level][lowest(larger)];
    }
    const std::uint64_t levels = levels_ & (~std::uint64_t{0} << bin.level << 1);
    if (levels == 0) {
      return nullptr;
    }
    const unsigned level = lowest(levels);
    return heads_[level][lowest(subs_[level])];
  }

  // Calls f(block) for every block, the smallest bins first, until f returns false. The
  // block that f sees may leave the index meanwhile, and smaller ones may come.
  template <class F>
  void ascending(F f) const {
    for (unsigned level = 0; level < kLevels; ++level) {
      for (unsigned sub = 0; sub < kSubs; ++sub) {
        Block* block = heads_[level][sub];
        while (block != nullptr) {
          Block* next = block->next;
          if (!f(block)) {
            return;
          }
          block = next;
        }
      }
    }
  }

 private:
  static constexpr unsigned kSubBits = 6;
  static constexpr unsigned kSubs = 1u << kSubBits;
  static constexpr unsigned kLevels = 48;
  // How many blocks of a bin are compared.
  static constexpr unsigned kCompared = 3;

  struct Bin {
    unsigned level;
    unsigned sub;
  };

  static unsigned lowest(std::uint64_t bits) {
    return static_cast<unsigned>(__builtin_ctzll(bits));
  }

  static std::uint64_t above(unsigned sub) { return ~std::uint64_t{0} << sub << 1; }

  static Bin bin_of(Bytes size) {
    const std::uint64_t units = size / kUnit;
    if (units < kSubs) {
      return {0, static_cast<unsigned>(units)};
    }
    const unsigned top = 63 - static_cast<unsigned>(__builtin_clzll(units));
    return {top - kSubBits + 1,
            static_cast<unsigned>(units >> (top - kSubBits)) - kSubs};
  }

  static Block* best_in(Block* head, Bytes size) {
    Block* best = nullptr;
    // What a block has too little is far more than this, as an unsigned number.
    Bytes best_over = Bytes{1} << 63;
    unsigned left = kCompared;
    for (Block* block = head; block != nullptr && left > 0;
         block = block->next, --left) {
      // Nothing here can be foreseen, so that nothing branches.
      const Bytes over = block->size - size;
      best = over < best_over ? block : best;
      best_over = std::min(over, best_over);
    }
    return best;
  }

  std::uint64_t levels_ = 0;
  std::array<std::uint64_t, kLevels> subs_{};
  std::array<std::array<Block*, kSubs>, kLevels> heads_{};
};

}  // namespace drivetrain
