// Makes pages hold chunks where a request needs them.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "address_range.hpp"
#include "arena.hpp"
#include "chunk_pool.hpp"
#include "chunk_supply.hpp"
#include "counters.hpp"
#include "driver/driver.hpp"

namespace drivetrain {

// Pages that must hold chunks.
struct Missing {
  Extent* extent;
  std::vector<std::uint32_t> pages;
};

class Mapper {
 public:
  using Arenas = std::vector<std::unique_ptr<Arena>>;

  // Args:
  //   run_bytes: No run reserves more, unless a request finds no place in it.
  //   max_mapped: How many pages may be mapped at all.
  Mapper(Driver& driver, ChunkPool& pool, ChunkSupply& supply, const Arenas& arenas,
         Counters& counters, Bytes run_bytes, std::uint64_t max_mapped)
      : driver_(driver),
        pool_(pool),
        supply_(supply),
        arenas_(arenas),
        counters_(counters),
        run_bytes_(run_bytes),
        max_mapped_(max_mapped) {}

  // Returns a live block where one of this size was put together before, if all chunks
  // that it lacks can come back there; else null.
  Block* reuse_layout(Arena& arena, Bytes size, bool capturing, Limits limits);

  // Returns a live block where the fewest pages must be filled; null when there are too
  // few chunks.
  //
  // Throws DriverError when the device refuses to map; all is as before then.
  Block* remap_free_chunks(Arena& arena, Bytes size, bool capturing, Limits limits);

  // Lets pages hold chunks again, on which nothing is under way; false when there are
  // too few.
  //
  // Throws DriverError when the device refuses to map; all is as before then.
  bool refill(const std::vector<Missing>& missing, Limits limits);

  // Undoes mappings that nobody needs, until so many more may be made.
  void make_mappable(std::size_t count);

 private:
  // A chunk of a free block that comes back to a page that still maps it.
  struct Return {
    Block* from;
    std::uint32_t holder;
    std::uint32_t page;
  };

  AddressRange find_range(Arena& arena, Bytes size, std::uint64_t survey,
                          bool capturing, bool returns, Limits limits);
  std::vector<double> page_costs(const Extent& extent, std::uint64_t survey,
                                 std::uint64_t passed, bool capturing, bool returns);
  // Lets a request fit behind all that was ever mapped, where the addresses there are
  // nobody's and the run may have more.
  void extend(Extent& extent, Bytes size);
  // Adds an extent that doubles the addresses of a run. Null where the run has as many
  // as it may, or the device refuses, unless one `must_be`.
  Extent* add_extent(Arena& arena, std::uint32_t run, Bytes size, bool must_be);
  Block* fill(Arena& arena, const AddressRange& range, Bytes size, bool capturing,
              std::uint64_t survey, Limits limits, bool& must_wait);
  // Whether all chunks that a range lacks can come back, and which these are.
  bool can_return(const Arena& arena, const Block* first, Address begin, Bytes size,
                  bool capturing, bool may_wait, std::vector<Return>& returns);
  // Whether a request may wait for another stream: whoever is waited for may wait for
  // this one, so that new chunks come first.
  bool may_wait(Bytes size, Limits limits) const {
    return pool_.count() + ceil_div(size, driver_.chunk_bytes()) + 1 > limits.hard;
  }
  // When this throws, `returns` are those that came.
  void bring_back(Arena& arena, Extent& extent, std::vector<Return>& returns);
  void map(Extent& extent, const std::vector<std::uint32_t>& pages,
           const std::vector<ChunkId>& chunks);
  // What was claimed and brought is free again.
  void give_up(Arena& arena, Block* claimed, const std::vector<Return>& returns,
               std::vector<ChunkId> chunks);
  // Nobody holds them any more.
  void put_back(Arena& arena, const std::vector<ChunkId>& chunks);

  Driver& driver_;
  ChunkPool& pool_;
  ChunkSupply& supply_;
  const Arenas& arenas_;
  Counters& counters_;
  Bytes run_bytes_;
  std::uint64_t max_mapped_;
  std::uint64_t look_ = 0;
};

}  // namespace drivetrain
