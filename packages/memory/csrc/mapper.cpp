#include "mapper.hpp"

#include <algorithm>

#include "error.hpp"

namespace drivetrain {

namespace {

// What it costs to fill a page, beside one that was never mapped: one that must be
// unmapped first, and one that still maps the chunk of a free block. To take that from
// another stream may need a wait.
constexpr double kUntouched = 1.0;
constexpr double kStale = 1.25;
constexpr double kReturned = 0.0;
constexpr double kReturnedFromAfar = 0.0625;

// What a run of an arena begins with; many arenas stay small.
constexpr Bytes kFirstPages = 32;

bool is_unused(const Block* block) {
  return block->kind() == Kind::kFree || block->kind() == Kind::kHole;
}

}  // namespace

Block* Mapper::reuse_layout(Arena& arena, Bytes size, bool capturing, Limits limits) {
  std::vector<Return> returns;
  for (const SizeHistory::Place& place : arena.size_history().of(size)) {
    Extent& extent = *place.extent;
    Block* first = block_at(extent, place.begin);
    // A hole is taken by whole pages.
    const Address begin =
        first->kind() == Kind::kHole
            ? round_down(place.begin - extent.at, extent.chunk_bytes) + extent.at
            : place.begin;
    if (!can_return(arena, first, begin, size, capturing, may_wait(size, limits),
                    returns)) {
      continue;
    }
    Block* claimed = arena.claim(first, begin, size);
    try {
      bring_back(arena, extent, returns);
    } catch (...) {
      give_up(arena, claimed, returns, {});
      throw;
    }
    return arena.fill(claimed, size);
  }
  return nullptr;
}

Block* Mapper::remap_free_chunks(Arena& arena, Bytes size, bool capturing,
                                 Limits limits) {
  for (const bool returns : {true, false}) {
    const std::uint64_t survey =
        supply_.survey(arena, capturing, may_wait(size, limits));
    const AddressRange range =
        find_range(arena, size, survey, capturing, returns, limits);
    bool must_wait = false;
    Block* block = fill(arena, range, size, capturing, survey, limits, must_wait);
    if (!must_wait) {
      return block;
    }
  }
  return nullptr;
}

AddressRange Mapper::find_range(Arena& arena, Bytes size, std::uint64_t survey,
                                bool capturing, bool returns, Limits limits) {
  const std::uint64_t passed = capturing ? arena.clock().known() : arena.clock().poll();
  // While memory may grow, each run has extents of its own.
  const bool grows = pool_.count() + size / driver_.chunk_bytes() < limits.soft;
  const std::uint32_t run = grows ? arena.next_turn(size) : 0;
  AddressRange best;
  best.cost = kBlocked;
  const auto look = [&](auto is_meant) {
    for (const auto& extent : arena.extents()) {
      if (!is_meant(*extent)) {
        continue;
      }
      extend(*extent, size);
      const std::vector<double> costs =
          page_costs(*extent, survey, passed, capturing, returns);
      const AddressRange found =
          cheapest_range(*extent, size, costs, kUntouched, best.cost);
      if (found.first != nullptr) {
        best = found;
      }
    }
  };
  look([&](const Extent& extent) { return !grows || extent.run == run; });
  const double fresh =
      kUntouched * static_cast<double>(ceil_div(size, driver_.chunk_bytes()));
  if (best.first == nullptr || best.cost > fresh) {
    Extent* extent = add_extent(arena, run, size, false);
    if (extent != nullptr) {
      return {extent->first, extent->at, fresh};
    }
  }
  if (best.first == nullptr) {
    look([&](const Extent& extent) { return grows && extent.run != run; });
  }
  if (best.first == nullptr) {
    const Extent* extent = add_extent(arena, run, size, true);
    best = {extent->first, extent->at, fresh};
  }
  return best;
}

std::vector<double> Mapper::page_costs(const Extent& extent, std::uint64_t survey,
                                       std::uint64_t passed, bool capturing,
                                       bool returns) {
  std::vector<double> costs(extent.high);
  const StreamClock& clock = extent.arena->clock();
  for (std::uint32_t i = 0; i < extent.high; ++i) {
    const Page& page = extent.pages[i];
    if (page.holds) {
      continue;
    }
    if (page.chunk == kNoChunk) {
      costs[i] = kUntouched;
      continue;
    }
    if (extent.arena->graph() != 0 || (capturing && page.left_at > passed)) {
      // A graph writes to the memory behind it again. Else its chunk may not come back
      // after all, and nothing can be waited for then.
      costs[i] = kBlocked;
      continue;
    }
    const Chunk& chunk = pool_[page.chunk];
    if (returns && chunk.surveyed == survey) {
      const Arena& holder = *chunk.holder.extent->arena;
      costs[i] = &holder.clock() == &clock ? kReturned : kReturnedFromAfar;
    } else {
      costs[i] = page.left_at <= passed ? kStale : kBlocked;
    }
  }
  return costs;
}

void Mapper::extend(Extent& extent, Bytes size) {
  const Bytes chunk = driver_.chunk_bytes();
  const Bytes reserved = extent.pages.size() * chunk;
  const Bytes wanted = (extent.high + ceil_div(size, chunk) + 1) * chunk;
  if (extent.is_fixed || wanted <= reserved || reserved >= run_bytes_) {
    return;
  }
  const Bytes most = std::max(2 * reserved, wanted);
  const Bytes bytes = std::min(most, run_bytes_) - reserved;
  if (driver_.extend(extent.at + reserved, bytes)) {
    extent.arena->extend(extent, bytes);
  } else {
    extent.is_fixed = true;
  }
}

Extent* Mapper::add_extent(Arena& arena, std::uint32_t run, Bytes size, bool must_be) {
  const Bytes chunk = driver_.chunk_bytes();
  Bytes reserved = 0;
  for (const auto& extent : arena.extents()) {
    reserved += extent->run == run ? extent->pages.size() * chunk : 0;
  }
  if (!must_be && reserved >= run_bytes_) {
    return nullptr;
  }
  const Bytes usual = std::max(kFirstPages * chunk, reserved);
  const Bytes left = run_bytes_ - std::min(run_bytes_, reserved);
  const Bytes bytes = std::max(round_up(size, chunk), std::min(usual, left));
  try {
    return &arena.add_extent(driver_.reserve(bytes), bytes, chunk, run);
  } catch (const DriverError&) {
    if (must_be) {
      throw;
    }
    return nullptr;
  }
}

Block* Mapper::fill(Arena& arena, const AddressRange& range, Bytes size, bool capturing,
                    std::uint64_t survey, Limits limits, bool& must_wait) {
  const Bytes chunk_bytes = driver_.chunk_bytes();
  Extent& extent = *range.first->extent;
  Block* claimed = arena.claim(range.first, range.begin, size);
  const std::uint32_t first = extent.page_of(claimed->at);
  const auto last =
      static_cast<std::uint32_t>(ceil_div(claimed->end() - extent.at, chunk_bytes));
  const auto inside = [&](const PageRef& ref) {
    return ref.extent == &extent && ref.page >= first && ref.page < last;
  };

  // What can come back to its page does so; the rest is missing.
  std::vector<Return> returns;
  std::vector<std::uint32_t> missing;
  for (std::uint32_t i = first; i < last; ++i) {
    const Page& page = extent.pages[i];
    if (page.holds) {
      continue;
    }
    Chunk* chunk = page.chunk == kNoChunk ? nullptr : &pool_[page.chunk];
    if (chunk != nullptr && chunk->surveyed == survey && !inside(chunk->holder)) {
      returns.push_back({chunk->free_in, chunk->holder.page, i});
      chunk->surveyed = 0;
    } else {
      missing.push_back(i);
    }
  }
  try {
    // Where a chunk was to come back to its page, and is inside the claimed block.
    must_wait = std::any_of(missing.begin(), missing.end(), [&](std::uint32_t i) {
      const Page& page = extent.pages[i];
      return page.chunk != kNoChunk && !arena.clock().passed(page.left_at);
    });
  } catch (...) {
    arena.abandon(claimed);
    throw;
  }
  if (must_wait) {
    arena.abandon(claimed);
    return nullptr;
  }
  const std::size_t num_before = pool_.count();
  std::vector<ChunkId> chunks;
  try {
    bring_back(arena, extent, returns);
    make_mappable(missing.size());
    if (!supply_.draw(missing.size(), arena, capturing, limits, chunks)) {
      give_up(arena, claimed, returns, chunks);
      return nullptr;
    }
    map(extent, missing, chunks);
  } catch (...) {
    give_up(arena, claimed, returns, chunks);
    throw;
  }
  const bool joined = missing.size() > pool_.count() - num_before || !returns.empty();
  if (joined && size >= chunk_bytes) {
    arena.size_history().add(size, {&extent, claimed->at});
  }
  return arena.fill(claimed, size);
}

bool Mapper::can_return(const Arena& arena, const Block* first, Address begin,
                        Bytes size, bool capturing, bool may_wait,
                        std::vector<Return>& returns) {
  returns.clear();
  ++look_;
  const Extent& extent = *first->extent;
  const Bytes chunk_bytes = extent.chunk_bytes;
  const Address end = begin + size;
  const Block* last = first;
  while (last != nullptr && is_unused(last) && last->end() < end) {
    last = last->after;
  }
  if (last == nullptr || !is_unused(last)) {
    return false;
  }
  // A free block at the end is claimed as a whole.
  const Address claimed = last->kind() == Kind::kFree ? last->end() : end;
  const std::uint32_t first_page = extent.page_of(begin);
  const auto end_page =
      static_cast<std::uint32_t>(ceil_div(claimed - extent.at, chunk_bytes));
  Block* from = nullptr;
  for (std::uint32_t i = first_page; i < end_page; ++i) {
    const Page& page = extent.pages[i];
    if (page.holds) {
      continue;
    }
    if (page.chunk == kNoChunk) {
      return false;
    }
    Chunk& chunk = pool_[page.chunk];
    const PageRef holder = chunk.holder;
    // Ranges overlap, so that two pages of one may map the same chunk.
    if (chunk.looked_at == look_) {
      return false;
    }
    chunk.looked_at = look_;
    if (holder.extent == nullptr ||
        (holder.extent == &extent && holder.page >= first_page &&
         holder.page < end_page)) {
      return false;
    }
    const Address at = holder.extent->address_of(holder.page);
    if (from == nullptr || from->extent != holder.extent || at < from->at ||
        at >= from->end()) {
      from = block_at(*holder.extent, at);
      if (from->kind() != Kind::kFree ||
          !ChunkSupply::may_serve(*from, arena, capturing, may_wait)) {
        return false;
      }
    }
    if (from->at > at || from->end() < at + chunk_bytes) {
      return false;
    }
    returns.push_back({from, holder.page, i});
  }
  return true;
}

void Mapper::bring_back(Arena& arena, Extent& extent, std::vector<Return>& returns) {
  // From the end of a block on, so that what is left of it stays the same block.
  std::sort(returns.begin(), returns.end(), [](const Return& a, const Return& b) {
    return a.from->at != b.from->at ? a.from->at < b.from->at : a.holder > b.holder;
  });
  std::vector<ChunkId> chunks;
  for (std::size_t i = 0; i < returns.size(); ++i) {
    const Return& one = returns[i];
    try {
      supply_.take_from(one.from, {one.holder, one.holder + 1}, arena, chunks);
    } catch (...) {
      returns.resize(i);
      throw;
    }
    pool_.hold(extent, one.page);
  }
}

void Mapper::map(Extent& extent, const std::vector<std::uint32_t>& pages,
                 const std::vector<ChunkId>& chunks) {
  std::vector<ChunkId> run;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    run.push_back(chunks[i]);
    if (i + 1 == pages.size() || pages[i + 1] != pages[i] + 1 ||
        extent.begins_part(pages[i + 1])) {
      const auto begin = static_cast<std::uint32_t>(pages[i] + 1 - run.size());
      pool_.map(extent, begin, run);
      run.clear();
    }
  }
}

void Mapper::give_up(Arena& arena, Block* claimed, const std::vector<Return>& returns,
                     std::vector<ChunkId> chunks) {
  Extent& extent = *claimed->extent;
  // Whoever gets them comes after what this stream has waited for.
  arena.clock().advance();
  for (const Return& one : returns) {
    Page& page = extent.pages[one.page];
    page.holds = false;
    page.left_at = arena.clock().now();
    chunks.push_back(page.chunk);
  }
  for (const ChunkId id : chunks) {
    if (arena.graph() != 0 && pool_[id].holder.extent != nullptr) {
      // It may be what the graph had before, and is still mapped where it had it.
      pool_[id].graph = arena.graph();
      pool_[id].tag = arena.tag();
    }
  }
  put_back(arena, chunks);
  arena.abandon(claimed);
}

void Mapper::put_back(Arena& arena, const std::vector<ChunkId>& chunks) {
  for (const ChunkId id : chunks) {
    Chunk& chunk = pool_[id];
    if (chunk.holder.extent != nullptr) {
      // It was mapped already, before the device refused another.
      Page& page = chunk.holder.extent->pages[chunk.holder.page];
      if (page.chunk == id) {
        page.holds = false;
        page.left_at = arena.clock().now();
      }
    }
    chunk.holder = {nullptr, 0};
    chunk.after = arena.clock().ticket();
    pool_.free_chunks().push_back(id);
  }
}

bool Mapper::refill(const std::vector<Missing>& missing, Limits limits) {
  std::vector<std::vector<ChunkId>> chunks(missing.size());
  const auto put_all_back = [&] {
    for (std::size_t i = 0; i < missing.size(); ++i) {
      Arena& arena = *missing[i].extent->arena;
      arena.clock().advance();
      put_back(arena, chunks[i]);
    }
  };
  try {
    for (std::size_t i = 0; i < missing.size(); ++i) {
      const auto& [extent, pages] = missing[i];
      make_mappable(pages.size());
      if (!supply_.draw(pages.size(), *extent->arena, false, limits, chunks[i])) {
        put_all_back();
        return false;
      }
    }
    for (std::size_t i = 0; i < missing.size(); ++i) {
      map(*missing[i].extent, missing[i].pages, chunks[i]);
    }
  } catch (...) {
    put_all_back();
    throw;
  }
  return true;
}

void Mapper::make_mappable(std::size_t count) {
  for (const bool wait : {false, true}) {
    for (const auto& arena : arenas_) {
      StreamClock& clock = arena->clock();
      if (arena->graph() != 0) {
        continue;
      }
      if (pool_.num_mapped() + count <= max_mapped_) {
        return;
      }
      const bool capturing = clock.capturing();
      if (wait && !capturing) {
        counters_.host_waits += !clock.passed(clock.now());
        clock.synchronize(clock.now());
      }
      const std::uint64_t passed = capturing ? clock.known() : clock.poll();
      for (const auto& extent : arena->extents()) {
        for (std::uint32_t i = 0; i < extent->high; ++i) {
          const Page& page = extent->pages[i];
          if (page.chunk != kNoChunk && !page.holds && page.left_at <= passed) {
            pool_.unmap(*extent, i);
          }
        }
      }
    }
  }
}

}  // namespace drivetrain
