#include "allocator.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>

#include "error.hpp"
#include "report.hpp"

namespace drivetrain {

namespace {

// A run of an arena may have several times the addresses that its device has memory, so
// that pages are seldom unmapped.
constexpr std::uint64_t kRunOfDevice = 2;
constexpr std::uint64_t kMappedOfDevice = 8;

// No capacity is that of the device.
std::uint64_t chunks_within(Driver& driver, Bytes capacity) {
  const Bytes total = driver.total_bytes();
  const Bytes bytes = capacity == 0 ? total : std::min(capacity, total);
  const std::uint64_t chunks = bytes / driver.chunk_bytes();
  if (chunks == 0) {
    throw MisuseError("a capacity of " + std::to_string(bytes) +
                      " bytes holds no chunk of " +
                      std::to_string(driver.chunk_bytes()));
  }
  return chunks;
}

std::uint64_t most_mapped(Driver& driver, const Options& options,
                          std::uint64_t num_chunks) {
  const std::uint64_t asked = options.mapped_bytes / driver.chunk_bytes();
  const std::uint64_t usual = kMappedOfDevice * num_chunks;
  return std::min(asked == 0 ? usual : asked, driver.max_mapped());
}

}  // namespace

Allocator::Allocator(Driver& driver, Options options,
                     std::shared_ptr<ProcessState> process)
    : driver_(driver),
      options_(options),
      process_(std::move(process)),
      chunk_(driver.chunk_bytes()),
      hard_limit_(chunks_within(driver, options.capacity_bytes)),
      pool_(driver, counters_),
      supply_(pool_, arenas_, counters_),
      mapper_(driver, pool_, supply_, arenas_, counters_,
              kRunOfDevice * hard_limit_ * chunk_,
              most_mapped(driver, options, hard_limit_)),
      sleeper_(driver, pool_, mapper_, arenas_, counters_, history_) {
  if (std::isnan(options.headroom)) {
    throw MisuseError("the headroom is no number");
  }
}

Allocator::~Allocator() {
  try {
    for (const auto& arena : arenas_) {
      for (const auto& extent : arena->extents()) {
        for (std::uint32_t page = 0; page < extent->high; ++page) {
          if (extent->pages[page].chunk != kNoChunk) {
            pool_.unmap(*extent, page);
          }
        }
        extent->parts.push_back(static_cast<std::uint32_t>(extent->pages.size()));
        std::uint32_t begin = 0;
        for (const std::uint32_t end : extent->parts) {
          driver_.unreserve(extent->address_of(begin), (end - begin) * chunk_);
          begin = end;
        }
      }
    }
  } catch (const DriverError&) {
    // The driver has ended before us, and all that was ours with it.
  }
}

Address Allocator::allocate(Bytes size, Stream stream, PoolKey key) {
  if (size == 0) {
    return 0;
  }
  const std::lock_guard<Lock> lock(lock_);
  if (size > hard_limit_ * chunk_) {
    refuse("allocate ", size, stream);
  }
  const Bytes rounded = round_up(size, kUnit);
  const StreamPool& pool = stream_pool_of(stream, key);
  Arena& arena = 2 * rounded <= chunk_ ? *pool.small : *pool.large;
  Block* block = nullptr;
  try {
    block = find(arena, rounded);
    // Twice: what a stream that is gone was given may be known to be free after the
    // first.
    for (int i = 0; i < 2 && block == nullptr && finish_gone_streams(); ++i) {
      block = find(arena, rounded);
    }
  } catch (const DeviceFull&) {
    try {
      give_back();
      block = find(arena, rounded);
    } catch (const DeviceFull& error) {
      refuse("allocate ", size, stream, error.what());
    }
  }
  if (block == nullptr) {
    refuse("allocate ", size, stream);
  }
  live_.insert(block);
  note(Action::kAllocate, *block);
  ++counters_.allocations;
  counters_.live_bytes += rounded;
  counters_.active_bytes += rounded;
  counters_.raise_peaks();
  return block->at;
}

Block* Allocator::find(Arena& arena, Bytes rounded) {
  // Where memory is short, blocks lie where their like were put together before.
  Block* block = arena.size_history().knows(rounded) ? reuse_layout(arena, rounded)
                                                     : arena.take(rounded);
  return block != nullptr ? block : remap_free_chunks(arena, rounded);
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
  if (sleeper_.is_any_asleep() && block->extent->arena->is_asleep()) {
    free_asleep(block);
    return;
  }
  if (block->shared()) {
    try {
      pending_.push_back(marked(block));
    } catch (...) {
      // The device refused an event: the block lives on, and may be freed again.
      live_.insert(block);
      throw;
    }
  }
  ++counters_.frees;
  counters_.live_bytes -= block->size;
  note(Action::kFreeRequested, *block);
  if (!block->shared()) {
    release(block);
    return;
  }
  users_.erase(block);
  block->become(Kind::kPending);
}

void Allocator::free_asleep(Block* block) {
  // Nothing is under way there, and no other process has it.
  ++counters_.frees;
  counters_.asleep_bytes -= block->size;
  users_.erase(block);
  note(Action::kFreeRequested, *block);
  note(Action::kFreeCompleted, *block);
  block->extent->arena->release(block);
  sleeper_.let_go(block);
}

Allocator::Pending Allocator::marked(Block* block) {
  Pending pending{block, {}, {}};
  for (StreamClock* user : users_[block]) {
    if (user->capturing()) {
      pending.captured.push_back(user);
    } else {
      pending.users.push_back(user->mark());
    }
  }
  return pending;
}

void Allocator::record_stream(Address at, Stream stream) {
  const std::lock_guard<Lock> lock(lock_);
  Block* block = live_around(at);
  if (block == nullptr) {
    throw MisuseError("no live block holds address " + std::to_string(at) +
                      ", so that no stream can use it");
  }
  StreamClock& clock = clock_of(stream);
  clock.revive();
  if (&clock == &block->extent->arena->clock()) {
    return;
  }
  block->share();
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
  for (const ChunkId id : pool_.free_chunks()) {
    pool_[id].graph = pool_[id].graph == graph ? 0 : pool_[id].graph;
  }
  const auto is_of_graph = [&](const StreamPool& pool) {
    return graph != 0 && pool.key.graph == graph;
  };
  stream_pools_.erase(
      std::remove_if(stream_pools_.begin(), stream_pools_.end(), is_of_graph),
      stream_pools_.end());
  last_stream_pool_ = 0;
}

void Allocator::refuse_asleep(std::uint64_t tag) const {
  throw MisuseError(process_->memory_of(tag) +
                    " sleeps: wake it before something is allocated there");
}

void Allocator::limit(Bytes capacity) {
  const std::lock_guard<Lock> lock(lock_);
  // What was given when the allocator was made holds on.
  hard_limit_ = std::min(chunks_within(driver_, capacity),
                         chunks_within(driver_, options_.capacity_bytes));
}

bool Allocator::owns(Address at) {
  const std::lock_guard<Lock> lock(lock_);
  const auto holds = [&](const std::unique_ptr<Extent>& extent) {
    return at >= extent->at && at < extent->at + extent->pages.size() * chunk_;
  };
  return std::any_of(arenas_.begin(), arenas_.end(), [&](const auto& arena) {
    return std::any_of(arena->extents().begin(), arena->extents().end(), holds);
  });
}

Counters Allocator::counters() {
  const std::lock_guard<Lock> lock(lock_);
  return counters_;
}

void Allocator::reset_peaks() {
  const std::lock_guard<Lock> lock(lock_);
  counters_.peak_live_bytes = counters_.live_bytes;
  counters_.peak_active_bytes = counters_.active_bytes;
  counters_.peak_reserved_bytes = counters_.reserved_bytes;
}

std::optional<std::pair<Address, Bytes>> Allocator::block_around(Address at) {
  const std::lock_guard<Lock> lock(lock_);
  const Block* block = live_around(at);
  if (block == nullptr) {
    return std::nullopt;
  }
  return std::make_pair(block->at, block->size);
}

Block* Allocator::live_around(Address at) {
  if (Block* block = live_.find(at)) {
    return block;
  }
  for (const auto& arena : arenas_) {
    for (const auto& extent : arena->extents()) {
      if (at >= extent->at && at < extent->at + extent->pages.size() * chunk_) {
        Block* block = block_at(*extent, at);
        return block->kind() == Kind::kLive ? block : nullptr;
      }
    }
  }
  return nullptr;
}

void Allocator::keep_history(std::size_t most) {
  const std::lock_guard<Lock> lock(lock_);
  history_.keep(most);
}

std::vector<HistoryEntry> Allocator::history() {
  const std::lock_guard<Lock> lock(lock_);
  return history_.entries();
}

Allocator::StreamPool& Allocator::stream_pool_of(Stream stream, PoolKey key) {
  const auto fits = [&](const StreamPool& pool) {
    return pool.stream == stream && pool.key == key;
  };
  std::size_t& last = last_stream_pool_;
  if (last < stream_pools_.size() && fits(stream_pools_[last])) {
    return stream_pools_[last];
  }
  for (last = 0; last < stream_pools_.size(); ++last) {
    if (fits(stream_pools_[last])) {
      return stream_pools_[last];
    }
  }
  if (sleeper_.is_asleep(key.tag)) {
    refuse_asleep(key.tag);
  }
  StreamClock& clock = clock_of(stream);
  StreamPool pool{stream, key, nullptr, nullptr};
  for (const bool large : {false, true}) {
    Arena* arena = abandoned(clock, key.tag, large);
    if (arena == nullptr) {
      arenas_.push_back(std::make_unique<Arena>(clock, store_, key.graph, key.tag,
                                                large ? chunk_ : 0));
      arena = arenas_.back().get();
    }
    arena->serve(key.graph);
    (large ? pool.large : pool.small) = arena;
  }
  stream_pools_.push_back(pool);
  return stream_pools_.back();
}

Arena* Allocator::abandoned(const StreamClock& clock, std::uint64_t tag, bool large) {
  for (const auto& arena : arenas_) {
    const bool alike = &arena->clock() == &clock && arena->is_large() == large &&
                       arena->tag() == tag && !arena->is_asleep();
    if (!alike || arena->graph() != 0 || !arena->is_empty()) {
      continue;
    }
    const auto holds = [&](const StreamPool& pool) {
      return pool.small == arena.get() || pool.large == arena.get();
    };
    if (std::none_of(stream_pools_.begin(), stream_pools_.end(), holds)) {
      return arena.get();
    }
  }
  return nullptr;
}

StreamClock& Allocator::clock_of(Stream stream) {
  std::unique_ptr<StreamClock>& clock = clocks_[stream];
  if (clock == nullptr) {
    clock = std::make_unique<StreamClock>(driver_, stream);
    driver_.meet(stream);
  }
  return *clock;
}

Block* Allocator::remap_free_chunks(Arena& arena, Bytes size) {
  if (arena.is_asleep()) {
    refuse_asleep(arena.tag());
  }
  ++counters_.misses;
  arena.clock().revive();
  const bool capturing = driver_.capturing(arena.clock().stream());
  // A stream that is being captured may not be asked for its events.
  if (!capturing && process_pending_frees(false)) {
    if (Block* block = arena.take(size)) {
      return block;
    }
  }
  for (;;) {
    Block* block = mapper_.remap_free_chunks(arena, size, capturing, limits(size));
    if (block != nullptr) {
      return block;
    }
    if (capturing || !process_pending_frees(true)) {
      return nullptr;
    }
    block = arena.take(size);
    if (block != nullptr) {
      return block;
    }
  }
}

Block* Allocator::reuse_layout(Arena& arena, Bytes size) {
  if (arena.is_asleep()) {
    refuse_asleep(arena.tag());
  }
  if (Block* block = arena.take_exact(size)) {
    return block;
  }
  // A larger free block is not cut for what can be put together again: the next step
  // asks for it too.
  const bool capturing = driver_.capturing(arena.clock().stream());
  if (Block* block = mapper_.reuse_layout(arena, size, capturing, limits(size))) {
    return block;
  }
  return arena.take(size);
}

bool Allocator::process_pending_frees(bool wait) {
  const auto begin = pending_.begin();
  auto kept = begin;
  auto next = begin;
  try {
    for (; next != pending_.end(); ++next) {
      if (is_unused(*next, wait)) {
        release(next->block);
      } else if (kept++ != next) {
        *(kept - 1) = std::move(*next);
      }
    }
  } catch (...) {
    // The device refused to tell; what was given before is no longer pending.
    pending_.erase(kept, next);
    throw;
  }
  const bool any = kept != pending_.end();
  pending_.erase(kept, pending_.end());
  return any;
}

bool Allocator::is_unused(Pending& pending, bool wait) {
  if (is_lent(pending.block)) {
    return false;
  }
  std::vector<StreamClock*>& captured = pending.captured;
  const auto marked = [&](StreamClock* user) {
    if (user->capturing()) {
      return false;
    }
    pending.users.push_back(user->mark());
    return true;
  };
  captured.erase(std::remove_if(captured.begin(), captured.end(), marked),
                 captured.end());
  if (!captured.empty()) {
    return false;
  }
  const auto passed = [](const Ticket& user) { return user.clock->passed(user.time); };
  if (std::all_of(pending.users.begin(), pending.users.end(), passed)) {
    return true;
  }
  StreamClock& own = pending.block->extent->arena->clock();
  if (!wait || own.capturing()) {
    return false;
  }
  for (const Ticket& user : pending.users) {
    if (own.gone()) {
      // It cannot be told to wait.
      counters_.host_waits += !user.clock->passed(user.time);
      user.clock->synchronize(user.time);
    } else {
      counters_.stream_waits += own.follow(user);
    }
  }
  return true;
}

void Allocator::release(Block* block) {
  Arena& arena = *block->extent->arena;
  const bool sleeps = sleeper_.is_any_asleep() && arena.is_asleep();
  counters_.active_bytes -= sleeps ? 0 : block->size;
  note(Action::kFreeCompleted, *block);
  block = arena.release(block);
  // Where new chunks are short, or to be spared, another stream may come for these.
  if (block->size >= chunk_ &&
      (options_.headroom >= 0 || pool_.count() >= hard_limit_)) {
    try {
      arena.clock().mark_free();
    } catch (const DriverError&) {
      // An event that is recorded later stands for this free too.
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

void Allocator::note(Action action, const Block& block) {
  if (history_.on()) {
    const Arena& arena = *block.extent->arena;
    history_.add(action, block.at, block.size, arena.clock().stream(), arena.graph());
  }
}

void Allocator::refuse(const std::string& wish, Bytes size, Stream stream,
                       const std::string& driver) {
  ++counters_.out_of_memory;
  history_.add(Action::kOutOfMemory, driver_.free_bytes(), size, stream, 0);
  const std::string text = describe_refusal(
      wish, size, counters_, arenas_, live_, pool_.free_chunks().size() * chunk_,
      hard_limit_ * chunk_, driver_.total_bytes(), driver_.free_bytes());
  // Page tables lie in the memory of the device as well.
  throw OutOfMemory(driver.empty() ? text
                                   : text + " The driver lacks memory: " + driver);
}

}  // namespace drivetrain
