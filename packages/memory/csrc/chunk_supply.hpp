// Where the chunks for a request come from, in the order of what they cost.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "arena.hpp"
#include "chunk_pool.hpp"
#include "counters.hpp"
#include "driver/driver.hpp"

namespace drivetrain {

// How many chunks there may be.
struct Limits {
  // Up to here new chunks come before those of free blocks.
  std::uint64_t soft;
  std::uint64_t hard;
};

class ChunkSupply {
 public:
  using Arenas = std::vector<std::unique_ptr<Arena>>;

  ChunkSupply(ChunkPool& pool, const Arenas& arenas, Counters& counters)
      : pool_(pool), arenas_(arenas), counters_(counters) {}

  // Whether a free block of one arena may serve another. What is private to a graph
  // stays there; a stream that is being captured waits for no other, nor others for it.
  static bool may_lend(const Arena& from, const Arena& to, bool capturing) {
    if (from.graph() != 0 && &from != &to) {
      return false;
    }
    return &from.clock() == &to.clock() || (!capturing && !from.clock().capturing());
  }

  // Whether a free block may serve `to`, if need be after a wait of its stream.
  static bool may_serve(const Block& block, const Arena& to, bool capturing,
                        bool may_wait) {
    Arena& from = *block.extent->arena;
    return may_lend(from, to, capturing) && (may_wait || &from.clock() == &to.clock() ||
                                             from.clock().passed(block.freed_at()));
  }

  // Notes in every chunk of a free block that may serve `to` which block that is. The
  // notes hold until a block changes; `surveyed` of such a chunk is what is returned.
  std::uint64_t survey(const Arena& to, bool capturing, bool may_wait);

  // Adds chunks until there are `count`: spare ones, new ones up to the soft limit,
  // those of free blocks of the same stream and of streams that are done, new ones up
  // to the hard limit, and those of streams that are waited for. Returns false if they
  // do not suffice.
  bool draw(std::size_t count, Arena& to, bool capturing, Limits limits,
            std::vector<ChunkId>& chunks);

  // How many chunks nobody needs, outside of graphs.
  std::size_t num_unneeded() const;

  // Takes the chunks of whole pages out of a free block, for `to`.
  void take_from(Block* block, PageRun run, Arena& to, std::vector<ChunkId>& chunks);

 private:
  enum class Reach { kOwn, kDone, kAny };

  void from_free_chunks(std::size_t count, Arena& to, bool capturing,
                        std::vector<ChunkId>& chunks);
  void from_device(std::size_t count, std::uint64_t limit,
                   std::vector<ChunkId>& chunks);
  void from_free_blocks(std::size_t count, Arena& to, bool capturing, Reach reach,
                        std::vector<ChunkId>& chunks);
  void follow(Arena& to, Ticket ticket);

  ChunkPool& pool_;
  const Arenas& arenas_;
  Counters& counters_;
  std::uint64_t survey_ = 0;
};

}  // namespace drivetrain
