#include "address_range.hpp"

#include <algorithm>

namespace drivetrain {

namespace {

// What the pages before each page cost in all, of an extent.
class Sums {
 public:
  Sums(const std::vector<double>& costs, double untouched)
      : sums_(costs.size() + 1), untouched_(untouched) {
    for (std::size_t page = 0; page < costs.size(); ++page) {
      sums_[page + 1] = sums_[page] + costs[page];
    }
  }

  double before(std::uint64_t page) const {
    const std::uint64_t known = sums_.size() - 1;
    if (page <= known) {
      return sums_[page];
    }
    return sums_[known] + untouched_ * static_cast<double>(page - known);
  }

 private:
  std::vector<double> sums_;
  double untouched_;
};

// Compares ranges within neighbouring free blocks and holes.
class Search {
 public:
  Search(const Extent& extent, Bytes size, const Sums& sums, double limit)
      : extent_(extent), size_(size), sums_(sums) {
    best_.cost = limit;
  }

  // Blocks from `first` on, up to `end`, none of them in use.
  void run(Block* first, Address end) {
    if (end - first->at < size_) {
      return;
    }
    // The last block in which a range can begin that ends with the one looked at.
    Block* begin = first;
    for (Block* block = first; block != nullptr && block->at < end;
         block = block->after) {
      if (block->kind() == Kind::kFree) {
        consider(block, block->at, end);
        while (begin != block && block->end() - begin->after->at >= size_) {
          begin = begin->after;
        }
        from_behind(begin, block);
      } else {
        in_hole(block, end);
      }
    }
  }

  const AddressRange& best() const { return best_; }

 private:
  void consider(Block* block, Address begin, Address end) {
    if (begin + size_ > end) {
      return;
    }
    const Bytes from = begin - extent_.at;
    const double cost = sums_.before(ceil_div(from + size_, extent_.chunk_bytes)) -
                        sums_.before(from / extent_.chunk_bytes);
    if (cost < best_.cost) {
      best_ = {block, begin, cost};
    }
  }

  // The range that ends with a free block, if it begins in a hole.
  void from_behind(Block* block, Block* last) {
    const Address end = last->end();
    if (block->kind() != Kind::kHole || end - block->at < size_) {
      return;
    }
    const Bytes from = end - size_ - extent_.at;
    consider(block, extent_.at + round_down(from, extent_.chunk_bytes), end);
  }

  void in_hole(Block* hole, Address end) {
    const std::uint32_t last = std::min(extent_.page_of(hole->end()), extent_.high + 1);
    for (std::uint32_t page = extent_.page_of(hole->at); page < last; ++page) {
      consider(hole, extent_.address_of(page), end);
    }
  }

  const Extent& extent_;
  Bytes size_;
  const Sums& sums_;
  AddressRange best_;
};

bool is_unused(const Block* block) {
  return block->kind() == Kind::kFree || block->kind() == Kind::kHole;
}

}  // namespace

AddressRange cheapest_range(const Extent& extent, Bytes size,
                            const std::vector<double>& costs, double untouched,
                            double limit) {
  const Sums sums(costs, untouched);
  Search search(extent, size, sums, limit);
  for (Block* block = extent.first; block != nullptr;) {
    if (!is_unused(block)) {
      block = block->after;
      continue;
    }
    Block* first = block;
    Address end = block->end();
    while (block != nullptr && is_unused(block)) {
      end = block->end();
      block = block->after;
    }
    search.run(first, end);
  }
  return search.best();
}

}  // namespace drivetrain
