#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace sim {

// Who may take a free block: anybody, a stream (its id), or a graph's capture.
using Owner = std::int64_t;
inline constexpr Owner kAnybody = -1;
constexpr Owner owner_of_capture(std::int64_t capture) { return -2 - capture; }

struct Block {
  std::size_t offset = 0;
  std::size_t size = 0;
  std::size_t requested = 0;
  Owner owner = kAnybody;
  bool used = false;
};

// Blocks of a range of addresses, in the order of streams.
//
// A freed block keeps its owner: the same stream may have it at once, because its work
// runs in order. Another one gets it only after `give_to_anybody`, which the caller
// calls when no work on it is pending.
class BlockPool {
 public:
  explicit BlockPool(std::size_t size);

  // Takes the smallest block that fits: of the owner's own, else of anybody's.
  std::optional<std::size_t> take(std::size_t size, std::size_t requested, Owner owner);
  void free(std::size_t offset);
  Block& at(std::size_t offset) { return blocks_.at(offset); }

  // Makes the free blocks that a rule names anybody's; calls back with each range.
  void give_to_anybody(const std::function<bool(Owner)>& rule,
                       const std::function<void(std::size_t, std::size_t)>& given);
  // Makes the used blocks of an owner another's when they are freed.
  void change_owner(Owner from, Owner to);

  // Bytes in used blocks, and in all blocks that have an owner.
  std::size_t used_bytes() const { return used_bytes_; }
  std::size_t reserved_bytes() const { return reserved_bytes_; }

 private:
  using Blocks = std::map<std::size_t, Block>;
  using SizeAndOffset = std::pair<std::size_t, std::size_t>;

  std::optional<std::size_t> find(std::size_t size, Owner owner) const;
  void add_free(const Block& block);
  void remove_free(const Block& block);
  // Joins a free block with its free neighbours of the same owner.
  Blocks::iterator merge(Blocks::iterator block);

  Blocks blocks_;
  std::map<Owner, std::set<SizeAndOffset>> free_;
  std::size_t used_bytes_ = 0;
  std::size_t reserved_bytes_ = 0;
};

}  // namespace sim
