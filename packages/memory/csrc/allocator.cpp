#include "allocator.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>

#include "error.hpp"
#include "report.hpp"

namespace drivetrain {

namespace {

// What it costs to fill a page, beside one that was never mapped: one that must be
// unmapped first, and one that still maps the chunk of a free block. To take that from
// another stream may need a wait.
constexpr double kUntouched = 1.0;
constexpr double kStale = 1.25;
constexpr double kReturned = 0.0;
constexpr double kReturnedFromAfar = 0.0625;

// An arena has several times the addresses that its device has memory, so that pages
// are seldom unmapped.
constexpr std::uint64_t kExtentOfDevice = 2;
constexpr std::uint64_t kMappedOfDevice = 8;

}  // namespace

Allocator::Allocator(Driver& driver, Options options)
    : driver_(driver),
      options_(options),
      chunk_(driver.chunk_bytes()),
      pool_(driver, counters_),
      supply_(pool_, arenas_, counters_) {
  const Bytes total = driver.total_bytes();
  const Bytes capacity =
      options.capacity_bytes == 0 ? total : std::min(options.capacity_bytes, total);
  hard_limit_ = capacity / chunk_;
  if (hard_limit_ == 0) {
    throw MisuseError("a capacity of " + std::to_string(capacity) +
                      " bytes holds no chunk of " + std::to_string(chunk_));
  }
  if (std::isnan(options.headroom)) {
    throw MisuseError("the headroom is no number");
  }
  const std::uint64_t usual = kMappedOfDevice * hard_limit_;
  const std::uint64_t asked = options.mapped_bytes / chunk_;
  mapped_limit_ = std::min(asked == 0 ? usual : asked, driver.max_mapped());
}

Allocator::~Allocator() {
  for (const auto& arena : arenas_) {
    for (const auto& extent : arena->extents()) {
      for (std::uint32_t page = 0; page < extent->high; ++page) {
        if (extent->pages[page].chunk != kNoChunk) {
          pool_.unmap(*extent, page);
        }
      }
      driver_.unreserve(extent->at, extent->pages.size() * chunk_);
    }
  }
}

Address Allocator::allocate(Bytes size, Stream stream, std::uint64_t graph) {
  if (size == 0) {
    return 0;
  }
  const std::lock_guard<Lock> lock(lock_);
  if (size > hard_limit_ * chunk_) {
    refuse(size);
  }
  const Bytes rounded = round_up(size, kUnit);
  const Home& home = home_of(stream, graph);
  Arena& arena = 2 * rounded <= chunk_ ? *home.small : *home.large;
  Block* block = arena.take(rounded);
  if (block == nullptr) {
    block = make_room(arena, rounded);
  }
  if (block == nullptr) {
    refuse(size);
  }
  live_.insert(block);
  ++counters_.allocations;
  counters_.live_bytes += rounded;
  counters_.active_bytes += rounded;
  counters_.peak_live_bytes = std::max(counters_.peak_live_bytes, counters_.live_bytes);
  counters_.peak_active_bytes =
      std::max(counters_.peak_active_bytes, counters_.active_bytes);
  return block->at;
}

void Allocator::free(Address at) {
  if (at == 0) {
    return;
  }
  const std::lock_guard<Lock> lock(lock_);
  Block* block = live_.remove(at);
  if (block == nullptr) {
    throw MisuseError("no live block begins at address " + std::to_string(at) +
                      ": freed twice, or never allocated here");
  }
  ++counters_.frees;
  counters_.live_bytes -= block->size;
  if (!block->shared) {
    give(block);
    return;
  }
  Pending pending{block, {}};
  for (StreamClock* user : users_[block]) {
    pending.users.push_back(user->mark());
  }
  users_.erase(block);
  block->become(Kind::kPending);
  pending_.push_back(std::move(pending));
}

void Allocator::record_stream(Address at, Stream stream) {
  const std::lock_guard<Lock> lock(lock_);
  Block* block = live_.find(at);
  if (block == nullptr) {
    throw MisuseError("no live block begins at address " + std::to_string(at) +
                      ", so that no stream can use it");
  }
  StreamClock& clock = clock_of(stream);
  if (&clock == &block->extent->arena->clock()) {
    return;
  }
  block->shared = true;
  std::vector<StreamClock*>& users = users_[block];
  if (std::find(users.begin(), users.end(), &clock) == users.end()) {
    users.push_back(&clock);
  }
}

void Allocator::release_graph(std::uint64_t graph) {
  const std::lock_guard<Lock> lock(lock_);
  for (const auto& arena : arenas_) {
    if (graph != 0 && arena->graph() == graph) {
      arena->publish();
    }
  }
  const auto is_of_graph = [&](const Home& home) {
    return graph != 0 && home.graph == graph;
  };
  homes_.erase(std::remove_if(homes_.begin(), homes_.end(), is_of_graph), homes_.end());
  last_home_ = 0;
}

void Allocator::trim() {
  const std::lock_guard<Lock> lock(lock_);
  settle(true);
  for (const auto& arena : arenas_) {
    if (arena->graph() != 0) {
      continue;
    }
    std::vector<ChunkId> chunks;
    arena->free().ascending([&](Block* block) {
      const PageRun run = whole_pages(*block);
      if (run.count() > 0) {
        supply_.take_from(block, run, *arena, chunks);
      }
      return true;
    });
    std::vector<ChunkId>& spares = pool_.spares();
    for (const ChunkId id : chunks) {
      pool_[id].after = arena->clock().ticket();
      spares.push_back(id);
    }
  }
  // A chunk that is spare may still be in use below any address that maps it.
  for (const auto& clock : clocks_) {
    counters_.host_waits += !clock.second->passed(clock.second->now());
    clock.second->synchronize(clock.second->now());
  }
  for (const ChunkId id : pool_.spares()) {
    pool_.destroy(id);
  }
  pool_.spares().clear();
}

Counters Allocator::counters() {
  const std::lock_guard<Lock> lock(lock_);
  return counters_;
}

Allocator::Home& Allocator::home_of(Stream stream, std::uint64_t graph) {
  const auto fits = [&](const Home& home) {
    return home.stream == stream && home.graph == graph;
  };
  if (last_home_ < homes_.size() && fits(homes_[last_home_])) {
    return homes_[last_home_];
  }
  for (last_home_ = 0; last_home_ < homes_.size(); ++last_home_) {
    if (fits(homes_[last_home_])) {
      return homes_[last_home_];
    }
  }
  StreamClock& clock = clock_of(stream);
  Home home{stream, graph, nullptr, nullptr};
  for (Arena** arena : {&home.small, &home.large}) {
    arenas_.push_back(std::make_unique<Arena>(clock, store_, graph));
    *arena = arenas_.back().get();
  }
  homes_.push_back(home);
  return homes_.back();
}

StreamClock& Allocator::clock_of(Stream stream) {
  std::unique_ptr<StreamClock>& clock = clocks_[stream];
  if (clock == nullptr) {
    clock = std::make_unique<StreamClock>(driver_, stream);
  }
  return *clock;
}

Block* Allocator::make_room(Arena& arena, Bytes size) {
  ++counters_.misses;
  const bool capturing = driver_.capturing(arena.clock().stream());
  // A stream that is being captured may not be asked for its events.
  if (!capturing && settle(false)) {
    if (Block* block = arena.take(size)) {
      return block;
    }
  }
  for (;;) {
    const std::uint64_t survey = supply_.survey(arena, capturing);
    const Window window = find_window(arena, size, survey, capturing);
    if (Block* block = fill(arena, window, size, capturing, survey)) {
      return block;
    }
    if (capturing || !settle(true)) {
      return nullptr;
    }
    if (Block* block = arena.take(size)) {
      return block;
    }
  }
}

Window Allocator::find_window(Arena& arena, Bytes size, std::uint64_t survey,
                              bool capturing) {
  const std::uint64_t passed = capturing ? arena.clock().known() : arena.clock().poll();
  Window best;
  best.cost = kBlocked;
  for (const auto& extent : arena.extents()) {
    const std::vector<double> costs = page_costs(*extent, survey, passed);
    const Window found = cheapest_window(*extent, size, costs, kUntouched, best.cost);
    if (found.first != nullptr) {
      best = found;
    }
  }
  if (best.first == nullptr) {
    const Bytes usual = kExtentOfDevice * hard_limit_ * chunk_;
    const Bytes bytes = std::max(usual, round_up(size, chunk_));
    const Extent& extent = arena.add_extent(driver_.reserve(bytes), bytes, chunk_);
    best = {extent.first, extent.at, kUntouched * static_cast<double>(size / chunk_)};
  }
  return best;
}

std::vector<double> Allocator::page_costs(const Extent& extent, std::uint64_t survey,
                                          std::uint64_t passed) {
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
    const Chunk& chunk = pool_[page.chunk];
    if (chunk.surveyed == survey) {
      const Arena& holder = *chunk.holder.extent->arena;
      costs[i] = &holder.clock() == &clock ? kReturned : kReturnedFromAfar;
    } else {
      costs[i] = page.left_at <= passed ? kStale : kBlocked;
    }
  }
  return costs;
}

Block* Allocator::fill(Arena& arena, const Window& window, Bytes size, bool capturing,
                       std::uint64_t survey) {
  Extent& extent = *window.first->extent;
  Block* claimed = arena.claim(window.first, window.begin, size);
  const std::uint32_t first = extent.page_of(claimed->at);
  const auto last =
      static_cast<std::uint32_t>(ceil_div(claimed->end() - extent.at, chunk_));
  const auto inside = [&](const PageRef& ref) {
    return ref.extent == &extent && ref.page >= first && ref.page < last;
  };

  // What can come back to its page does so; the rest is missing.
  struct Return {
    Block* from;
    std::uint32_t holder;
    std::uint32_t page;
  };
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
  // From the end of a block on, so that what is left of it stays the same block.
  std::sort(returns.begin(), returns.end(), [](const Return& a, const Return& b) {
    return a.from->at != b.from->at ? a.from->at < b.from->at : a.holder > b.holder;
  });
  std::vector<ChunkId> chunks;
  for (const Return& one : returns) {
    supply_.take_from(one.from, {one.holder, one.holder + 1}, arena, chunks);
    pool_.hold(extent, one.page);
  }
  chunks.clear();
  for (const std::uint32_t i : missing) {
    // Its chunk was to come back, and cannot after all.
    const Page& page = extent.pages[i];
    if (page.chunk != kNoChunk && !arena.clock().passed(page.left_at)) {
      ++counters_.host_waits;
      arena.clock().synchronize(page.left_at);
    }
  }

  make_mappable(missing.size());
  if (!supply_.draw(missing.size(), arena, capturing, limits(size), chunks)) {
    // Whoever gets them comes after what this stream has waited for.
    arena.clock().advance();
    for (const Return& one : returns) {
      chunks.push_back(extent.pages[one.page].chunk);
      extent.pages[one.page].holds = false;
      extent.pages[one.page].left_at = arena.clock().now();
    }
    for (const ChunkId id : chunks) {
      pool_[id].holder = {nullptr, 0};
      pool_[id].after = arena.clock().ticket();
      pool_.spares().push_back(id);
    }
    arena.abandon(claimed);
    return nullptr;
  }
  std::vector<ChunkId> run;
  for (std::size_t i = 0; i < missing.size(); ++i) {
    run.push_back(chunks[i]);
    if (i + 1 == missing.size() || missing[i + 1] != missing[i] + 1) {
      const auto begin = static_cast<std::uint32_t>(missing[i] + 1 - run.size());
      pool_.map(extent, begin, run);
      run.clear();
    }
  }
  return arena.fill(claimed, size);
}

bool Allocator::settle(bool wait) {
  std::vector<Pending> still;
  const std::size_t before = pending_.size();
  for (Pending& pending : pending_) {
    StreamClock& own = pending.block->extent->arena->clock();
    bool done = true;
    for (const Ticket& user : pending.users) {
      if (wait) {
        counters_.stream_waits += own.follow(user);
      } else {
        done = done && user.clock->passed(user.time);
      }
    }
    if (done) {
      give(pending.block);
    } else {
      still.push_back(std::move(pending));
    }
  }
  pending_ = std::move(still);
  return pending_.size() < before;
}

void Allocator::give(Block* block) {
  counters_.active_bytes -= block->size;
  block->shared = false;
  block->extent->arena->give(block);
}

void Allocator::make_mappable(std::size_t count) {
  for (const bool wait : {false, true}) {
    for (const auto& arena : arenas_) {
      StreamClock& clock = arena->clock();
      if (pool_.num_mapped() + count <= mapped_limit_) {
        return;
      }
      if (wait) {
        counters_.host_waits += !clock.passed(clock.now());
        clock.synchronize(clock.now());
      }
      const std::uint64_t passed = clock.poll();
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

Limits Allocator::limits(Bytes coming) const {
  if (options_.headroom < 0) {
    return {hard_limit_, hard_limit_};
  }
  const Bytes live =
      std::max(counters_.peak_active_bytes, counters_.active_bytes + coming);
  const double bytes = static_cast<double>(live) * (1.0 + options_.headroom);
  return {static_cast<std::uint64_t>(std::ceil(bytes / static_cast<double>(chunk_))),
          hard_limit_};
}

void Allocator::refuse(Bytes size) {
  ++counters_.out_of_memory;
  throw OutOfMemory(describe_refusal(size, counters_, arenas_, hard_limit_ * chunk_,
                                     driver_.free_bytes()));
}

}  // namespace drivetrain
