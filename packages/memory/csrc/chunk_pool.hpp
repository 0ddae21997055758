// The physical chunks of a device, and every page that maps them.

#pragma once

#include <cstdint>
#include <vector>

#include "block.hpp"
#include "counters.hpp"
#include "driver/driver.hpp"

namespace drivetrain {

struct PageRef {
  Extent* extent;
  std::uint32_t page;

  bool operator==(const PageRef& other) const {
    return extent == other.extent && page == other.page;
  }
};

struct Chunk {
  Handle handle = 0;
  // The graph that it is private to while it is spare, and the tag there; 0 for none.
  std::uint64_t graph = 0;
  std::uint64_t tag = 0;
  // The page that holds it; no extent while it is spare.
  PageRef holder{nullptr, 0};
  // Every page that maps it, the holder among them.
  std::vector<PageRef> maps;
  // What its next tenant comes after, while it is spare.
  Ticket after;
  // The free block around its holder, as a survey found it.
  Block* free_in = nullptr;
  std::uint64_t surveyed = 0;
  // The last search of a size history that saw it.
  std::uint64_t looked_at = 0;
};

class ChunkPool {
 public:
  ChunkPool(Driver& driver, Counters& counters)
      : driver_(driver), counters_(counters) {}
  ~ChunkPool();
  ChunkPool(const ChunkPool&) = delete;
  ChunkPool& operator=(const ChunkPool&) = delete;

  Chunk& operator[](ChunkId id) { return chunks_[id]; }

  // Makes a chunk; kNoChunk when the device has no memory left.
  ChunkId create();

  // Gives a chunk back to the device. Nothing may be under way on any page that maps
  // it.
  void destroy(ChunkId id);

  // Maps chunks at neighbouring pages, which hold them from then on. Another chunk that
  // such a page maps is unmapped first; nothing may be under way there.
  void map(Extent& extent, std::uint32_t first, const std::vector<ChunkId>& ids);

  // A page that still maps a chunk holds it from now on.
  void hold(Extent& extent, std::uint32_t page);

  void unmap(Extent& extent, std::uint32_t page);

  // Chunks that no page holds.
  std::vector<ChunkId>& free_chunks() { return free_chunks_; }

  // How many chunks there are, and how many pages map one.
  std::size_t count() const { return count_; }
  std::size_t num_mapped() const { return num_mapped_; }

 private:
  Driver& driver_;
  Counters& counters_;
  std::vector<Chunk> chunks_;
  std::vector<ChunkId> unused_ids_;
  std::vector<ChunkId> free_chunks_;
  std::vector<Handle> handles_;
  std::size_t count_ = 0;
  std::size_t num_mapped_ = 0;
};

}  // namespace drivetrain
