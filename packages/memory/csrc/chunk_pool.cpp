#include "chunk_pool.hpp"

#include <algorithm>

#include "error.hpp"

namespace drivetrain {

ChunkPool::~ChunkPool() {
  try {
    for (Chunk& chunk : chunks_) {
      if (chunk.handle != 0) {
        driver_.destroy(chunk.handle);
      }
    }
  } catch (const DriverError&) {
    // The driver has ended before us, and all that was ours with it.
  }
}

ChunkId ChunkPool::create() {
  Handle handle = 0;
  if (!driver_.create(&handle)) {
    return kNoChunk;
  }
  ChunkId id;
  if (unused_ids_.empty()) {
    id = static_cast<ChunkId>(chunks_.size());
    chunks_.emplace_back();
  } else {
    id = unused_ids_.back();
    unused_ids_.pop_back();
  }
  chunks_[id].handle = handle;
  ++count_;
  ++counters_.created;
  counters_.reserved_bytes += driver_.chunk_bytes();
  counters_.peak_reserved_bytes =
      std::max(counters_.peak_reserved_bytes, counters_.reserved_bytes);
  return id;
}

void ChunkPool::destroy(ChunkId id) {
  Chunk& chunk = chunks_[id];
  while (!chunk.maps.empty()) {
    const PageRef last = chunk.maps.back();
    unmap(*last.extent, last.page);
  }
  driver_.destroy(chunk.handle);
  chunk = Chunk{};
  unused_ids_.push_back(id);
  --count_;
  ++counters_.destroyed;
  counters_.reserved_bytes -= driver_.chunk_bytes();
}

void ChunkPool::map(Extent& extent, std::uint32_t first,
                    const std::vector<ChunkId>& ids) {
  handles_.clear();
  for (std::uint32_t i = 0; i < ids.size(); ++i) {
    if (extent.pages[first + i].chunk != kNoChunk) {
      unmap(extent, first + i);
    }
    handles_.push_back(chunks_[ids[i]].handle);
  }
  driver_.map(extent.address_of(first), handles_.data(), handles_.size());
  for (std::uint32_t i = 0; i < ids.size(); ++i) {
    Chunk& chunk = chunks_[ids[i]];
    counters_.remapped += !chunk.maps.empty();
    chunk.maps.push_back({&extent, first + i});
    chunk.holder = {&extent, first + i};
    chunk.graph = 0;
    extent.pages[first + i].chunk = ids[i];
    extent.pages[first + i].holds = true;
  }
  extent.high = std::max(extent.high, first + static_cast<std::uint32_t>(ids.size()));
  num_mapped_ += ids.size();
  counters_.mapped += ids.size();
  ++counters_.map_calls;
}

void ChunkPool::hold(Extent& extent, std::uint32_t page) {
  extent.pages[page].holds = true;
  chunks_[extent.pages[page].chunk].holder = {&extent, page};
  chunks_[extent.pages[page].chunk].graph = 0;
  ++counters_.returned;
}

void ChunkPool::unmap(Extent& extent, std::uint32_t page) {
  Page& mapped = extent.pages[page];
  driver_.unmap(extent.address_of(page), 1);
  std::vector<PageRef>& maps = chunks_[mapped.chunk].maps;
  maps.erase(std::find(maps.begin(), maps.end(), PageRef{&extent, page}));
  mapped.chunk = kNoChunk;
  mapped.holds = false;
  --num_mapped_;
  ++counters_.unmapped;
}

}  // namespace drivetrain
