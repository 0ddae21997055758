#include "chunk_supply.hpp"

#include <algorithm>

namespace drivetrain {

std::uint64_t ChunkSupply::survey(const Arena& to, bool capturing, bool may_wait) {
  ++survey_;
  for (const auto& arena : arenas_) {
    if (!may_lend(*arena, to, capturing)) {
      continue;
    }
    arena->free().ascending([&](Block* block) {
      const PageRun run = whole_pages(*block);
      if (run.count() == 0 || !may_serve(*block, to, capturing, may_wait)) {
        return true;
      }
      for (std::uint32_t page = run.first; page < run.last; ++page) {
        Chunk& chunk = pool_[block->extent->pages[page].chunk];
        chunk.free_in = block;
        chunk.surveyed = survey_;
      }
      return true;
    });
  }
  return survey_;
}

bool ChunkSupply::draw(std::size_t count, Arena& to, bool capturing, Limits limits,
                       std::vector<ChunkId>& chunks) {
  from_free_chunks(count, to, capturing, chunks);
  from_device(count, std::min(limits.soft, limits.hard), chunks);
  from_free_blocks(count, to, capturing, Reach::kOwn, chunks);
  from_free_blocks(count, to, capturing, Reach::kDone, chunks);
  // Whoever is waited for may wait for this stream itself.
  from_device(count, limits.hard, chunks);
  from_free_blocks(count, to, capturing, Reach::kAny, chunks);
  return chunks.size() >= count;
}

std::size_t ChunkSupply::num_unneeded() const {
  std::size_t count = pool_.free_chunks().size();
  for (const auto& arena : arenas_) {
    if (arena->graph() == 0) {
      arena->free().ascending([&](const Block* block) {
        count += whole_pages(*block).count();
        return true;
      });
    }
  }
  return count;
}

void ChunkSupply::take_from(Block* block, PageRun run, Arena& to,
                            std::vector<ChunkId>& chunks) {
  Extent& extent = *block->extent;
  Arena& from = *extent.arena;
  follow(to, {&from.clock(), block->freed_at()});
  if (&from.clock() != &to.clock()) {
    counters_.stolen += run.count();
  }
  for (std::uint32_t page = run.last; page-- > run.first;) {
    const ChunkId id = extent.pages[page].chunk;
    pool_[id].holder = {nullptr, 0};
    pool_[id].graph = from.graph();
    pool_[id].tag = from.tag();
    chunks.push_back(id);
  }
  from.lend(block, run);
}

void ChunkSupply::from_free_chunks(std::size_t count, Arena& to, bool capturing,
                                   std::vector<ChunkId>& chunks) {
  std::vector<ChunkId>& free_chunks = pool_.free_chunks();
  for (std::size_t i = free_chunks.size(); i-- > 0 && chunks.size() < count;) {
    const Chunk& chunk = pool_[free_chunks[i]];
    const Ticket after = chunk.after;
    if (chunk.graph != 0 && (chunk.graph != to.graph() || chunk.tag != to.tag())) {
      continue;
    }
    const bool free_of_wait = after.clock == nullptr || after.clock == &to.clock();
    if (!free_of_wait && (capturing || after.clock->capturing())) {
      continue;
    }
    follow(to, after);
    chunks.push_back(free_chunks[i]);
    free_chunks.erase(free_chunks.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void ChunkSupply::from_device(std::size_t count, std::uint64_t limit,
                              std::vector<ChunkId>& chunks) {
  while (chunks.size() < count && pool_.count() < limit) {
    const ChunkId id = pool_.create();
    if (id == kNoChunk) {
      return;
    }
    chunks.push_back(id);
  }
}

void ChunkSupply::from_free_blocks(std::size_t count, Arena& to, bool capturing,
                                   Reach reach, std::vector<ChunkId>& chunks) {
  for (const auto& arena : arenas_) {
    if (chunks.size() >= count) {
      return;
    }
    const bool own = &arena->clock() == &to.clock();
    if (own != (reach == Reach::kOwn) || !may_lend(*arena, to, capturing)) {
      continue;
    }
    arena->free().ascending([&](Block* block) {
      PageRun run = whole_pages(*block);
      const auto wanted = static_cast<std::uint32_t>(
          std::min<std::size_t>(run.count(), count - chunks.size()));
      const bool ready =
          reach != Reach::kDone || arena->clock().passed(block->freed_at());
      if (wanted > 0 && ready) {
        run.first = run.last - wanted;
        take_from(block, run, to, chunks);
      }
      return chunks.size() < count;
    });
  }
}

void ChunkSupply::follow(Arena& to, Ticket ticket) {
  counters_.stream_waits += to.clock().follow(ticket);
}

}  // namespace drivetrain
