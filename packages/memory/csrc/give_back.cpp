// What an allocator gives back to its device: what nobody needs, and what sleeps.

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "allocator.hpp"
#include "error.hpp"

namespace drivetrain {

void Allocator::trim() {
  const std::lock_guard<Lock> lock(lock_);
  destroy_free_chunks();
}

Bytes Allocator::sleep(std::uint64_t tag, bool keeps) {
  const std::lock_guard<Lock> lock(lock_);
  if (sleeper_.is_asleep(tag)) {
    throw MisuseError(process_->memory_of(tag) + " sleeps already");
  }
  await_all();
  if (lends(tag)) {
    // They would go on with what is nobody's any more.
    throw MisuseError("other processes have some " + process_->memory_of(tag) +
                      ": it sleeps when they have let go of it");
  }
  return sleeper_.sleep(tag, keeps);
}

bool Allocator::is_asleep(std::uint64_t tag) {
  const std::lock_guard<Lock> lock(lock_);
  return sleeper_.is_asleep(tag);
}

void Allocator::wake(std::uint64_t tag) {
  const std::lock_guard<Lock> lock(lock_);
  if (!sleeper_.is_asleep(tag)) {
    throw MisuseError(process_->memory_of(tag) + " does not sleep");
  }
  await_all();
  const Bytes bytes = sleeper_.bytes_to_wake(tag);
  const Limits limits{hard_limit_, hard_limit_};
  const std::uint64_t more = hard_limit_ - std::min(hard_limit_, pool_.count());
  const Bytes fresh = std::min(more * chunk_, driver_.free_bytes());
  if (bytes > fresh + supply_.num_unneeded() * chunk_) {
    // What others have cached stays theirs.
    refuse("wake " + process_->memory_of(tag) + ", ", bytes, 0);
  }
  std::string lacks;
  try {
    if (sleeper_.wake(tag, limits)) {
      return;
    }
  } catch (const DeviceFull& error) {
    lacks = error.what();
  }
  refuse("wake " + process_->memory_of(tag) + ", ", bytes, 0, lacks);
}

void Allocator::await_all() {
  // A device is waited for by no one while a stream is captured that is not known here.
  if (process_->expects_captures()) {
    throw MisuseError("a graph is being captured, or a memory pool is in use");
  }
  finish_gone_streams();
  const auto capturing = [](const auto& clock) { return clock.second->capturing(); };
  if (std::any_of(clocks_.begin(), clocks_.end(), capturing) ||
      !driver_.synchronize_all()) {
    throw MisuseError("a graph is being captured");
  }
  for (const auto& clock : clocks_) {
    clock.second->finish();
  }
  process_pending_frees(true);
}

void Allocator::give_back() {
  const auto capturing = [](const auto& clock) { return clock.second->capturing(); };
  // The host may wait for nothing while a graph is captured.
  if (std::none_of(clocks_.begin(), clocks_.end(), capturing)) {
    destroy_free_chunks();
  }
}

bool Allocator::finish_gone_streams() {
  if (process_->expects_captures()) {
    return false;
  }
  std::vector<StreamClock*> gone;
  for (const auto& clock : clocks_) {
    if (clock.second->capturing()) {
      if (!clock.second->gone()) {
        return false;
      }
      gone.push_back(clock.second.get());
    }
  }
  if (gone.empty() || !driver_.synchronize_all()) {
    return false;
  }
  ++counters_.host_waits;
  for (StreamClock* clock : gone) {
    clock->finish();
  }
  return true;
}

void Allocator::destroy_free_chunks() {
  finish_gone_streams();
  // What comes back to a stream that is gone is to be found free, too.
  while (process_pending_frees(true) && finish_gone_streams()) {
  }
  for (const auto& arena : arenas_) {
    if (arena->graph() != 0 || arena->clock().capturing()) {
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
    std::vector<ChunkId>& free_chunks = pool_.free_chunks();
    for (const ChunkId id : chunks) {
      pool_[id].after = arena->clock().ticket();
      free_chunks.push_back(id);
    }
  }
  for (const auto& clock : clocks_) {
    if (!clock.second->capturing()) {
      counters_.host_waits += !clock.second->passed(clock.second->now());
      clock.second->synchronize(clock.second->now());
    }
  }
  // A chunk that is spare may still be in use below any address that maps it.
  const auto in_use = [](const PageRef& at) {
    return !at.extent->arena->clock().passed(at.extent->pages[at.page].left_at);
  };
  std::vector<ChunkId>& free_chunks = pool_.free_chunks();
  for (std::size_t i = free_chunks.size(); i-- > 0;) {
    const ChunkId id = free_chunks[i];
    const std::vector<PageRef>& maps = pool_[id].maps;
    if (pool_[id].graph != 0 || std::any_of(maps.begin(), maps.end(), in_use)) {
      continue;
    }
    free_chunks.erase(free_chunks.begin() + static_cast<std::ptrdiff_t>(i));
    try {
      pool_.destroy(id);
    } catch (...) {
      free_chunks.push_back(id);
      throw;
    }
  }
}

}  // namespace drivetrain
