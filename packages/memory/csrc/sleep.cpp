#include "sleep.hpp"

#include <algorithm>
#include <string>

#include "error.hpp"

namespace drivetrain {

namespace {

template <class F>
void each_live_block(const Arena& arena, F f) {
  for (const auto& extent : arena.extents()) {
    for (Block* block = extent->first; block != nullptr; block = block->after) {
      if (block->kind() == Kind::kLive || block->kind() == Kind::kPending) {
        f(block);
      }
    }
  }
}

}  // namespace

Bytes Sleeper::sleep(std::uint64_t tag, bool keeps) {
  const std::vector<Arena*> arenas = arenas_of(tag);
  std::unique_ptr<Contents> contents = read(keeps ? arenas : std::vector<Arena*>{});
  contents->graph_pages = graph_pages_of(arenas);
  for (const Arena* arena : arenas) {
    each_live_block(*arena, [&](const Block* block) {
      contents->num_live += block->kind() == Kind::kLive;
    });
  }
  asleep_[tag] = std::move(contents);
  count(arenas, false);
  note(Action::kSleep, arenas);
  for (Arena* arena : arenas) {
    arena->fall_asleep();
  }
  const std::size_t before = pool_.count();
  const std::string refused = give_up_pages(arenas);
  if (!refused.empty()) {
    throw DriverError(refused + "; it sleeps, but for what the driver refused to take");
  }
  return (before - pool_.count()) * driver_.chunk_bytes();
}

std::string Sleeper::give_up_pages(const std::vector<Arena*>& arenas) {
  std::string refused;
  for (const Arena* arena : arenas) {
    for (const auto& extent : arena->extents()) {
      for (std::uint32_t page = 0; page < extent->high; ++page) {
        if (!extent->pages[page].holds) {
          continue;
        }
        const ChunkId id = extent->pages[page].chunk;
        try {
          pool_.destroy(id);
        } catch (const DriverError& error) {
          refused = error.what();
          if (!extent->pages[page].holds) {
            pool_[id].holder = {nullptr, 0};
            pool_.free_chunks().push_back(id);
          }
        }
      }
    }
  }
  return refused;
}

bool Sleeper::wake(std::uint64_t tag, Limits limits) {
  const std::vector<Arena*> arenas = arenas_of(tag);
  if (!mapper_.refill(missing_of(tag), limits)) {
    return false;
  }
  const Contents& contents = *asleep_.at(tag);
  try {
    map_again(contents.graph_pages);
    // What is read by others may be in use until now.
    driver_.synchronize_all();
    for (const Kept& kept : contents.blocks) {
      if (kept.block->kind() == Kind::kLive) {
        driver_.write(kept.block->at, contents.memory + kept.offset, kept.block->size);
      }
    }
  } catch (const DriverError&) {
    give_up_pages(arenas);
    throw;
  }
  for (Arena* arena : arenas) {
    arena->wake_up();
  }
  count(arenas, true);
  note(Action::kWake, arenas);
  asleep_.erase(tag);
  return true;
}

void Sleeper::let_go(const Block* block) {
  Contents& contents = *asleep_.at(block->extent->arena->tag());
  if (--contents.num_live == 0) {
    contents.drop();
  }
}

void Sleeper::count(const std::vector<Arena*>& arenas, bool awake) {
  Bytes live = 0;
  Bytes active = 0;
  for (const Arena* arena : arenas) {
    each_live_block(*arena, [&](const Block* block) {
      live += block->kind() == Kind::kLive ? block->size : 0;
      active += block->size;
    });
  }
  if (!awake) {
    counters_.asleep_bytes += live;
    counters_.live_bytes -= live;
    counters_.active_bytes -= active;
    return;
  }
  counters_.asleep_bytes -= live;
  counters_.live_bytes += live;
  counters_.active_bytes += active;
  counters_.raise_peaks();
}

void Sleeper::note(Action action, const std::vector<Arena*>& arenas) {
  for (const Arena* arena : arenas) {
    for (const auto& extent : arena->extents()) {
      std::uint32_t first = 0;
      for (std::uint32_t page = 0; page <= extent->high; ++page) {
        if (page < extent->high && extent->pages[page].holds) {
          continue;
        }
        if (page > first) {
          history_.add(action, extent->address_of(first),
                       (page - first) * extent->chunk_bytes, arena->clock().stream(),
                       arena->graph());
        }
        first = page + 1;
      }
    }
  }
}

Bytes Sleeper::bytes_to_wake(std::uint64_t tag) const {
  std::size_t pages = 0;
  for (const Missing& one : missing_of(tag)) {
    pages += one.pages.size();
  }
  return pages * driver_.chunk_bytes();
}

std::vector<Arena*> Sleeper::arenas_of(std::uint64_t tag) const {
  std::vector<Arena*> found;
  for (const auto& arena : arenas_) {
    if (arena->tag() == tag) {
      found.push_back(arena.get());
    }
  }
  return found;
}

std::unique_ptr<Sleeper::Contents> Sleeper::read(
    const std::vector<Arena*>& arenas) const {
  std::vector<Kept> blocks;
  Bytes bytes = 0;
  for (const Arena* arena : arenas) {
    each_live_block(*arena, [&](Block* block) {
      blocks.push_back({block, bytes});
      bytes += block->size;
    });
  }
  std::unique_ptr<Contents> contents;
  try {
    contents = std::make_unique<Contents>(driver_, bytes);
  } catch (const DriverError& error) {
    throw DriverError("the host has no " + std::to_string(bytes >> 20) +
                      " MiB of page-locked memory for what is kept (" + error.what() +
                      "): sleep with keep=False, or in parts, by more tags");
  }
  for (const Kept& kept : blocks) {
    driver_.read(contents->memory + kept.offset, kept.block->at, kept.block->size);
  }
  contents->blocks = std::move(blocks);
  return contents;
}

std::vector<Sleeper::GraphPage> Sleeper::graph_pages_of(
    const std::vector<Arena*>& arenas) const {
  std::vector<GraphPage> pages;
  for (const Arena* arena : arenas) {
    if (arena->graph() == 0) {
      continue;
    }
    for (const auto& extent : arena->extents()) {
      for (std::uint32_t page = 0; page < extent->high; ++page) {
        const ChunkId id = extent->pages[page].chunk;
        if (id != kNoChunk && pool_[id].holder.extent != nullptr) {
          pages.push_back({extent.get(), page, pool_[id].holder});
        }
      }
    }
  }
  return pages;
}

void Sleeper::map_again(const std::vector<GraphPage>& pages) {
  mapper_.make_mappable(pages.size());
  for (const auto& [extent, page, holder] : pages) {
    const ChunkId id = holder.extent->pages[holder.page].chunk;
    if (extent->pages[page].chunk == id) {
      continue;
    }
    pool_.map(*extent, page, {id});
    extent->pages[page].holds = false;
    pool_[id].holder = holder;
  }
}

std::vector<Missing> Sleeper::missing_of(std::uint64_t tag) const {
  std::vector<Missing> missing;
  // All that graphs hold.
  for (const auto& [extent, page, holder] : asleep_.at(tag)->graph_pages) {
    const PageRef here{extent, page};
    if (!(here == holder) || extent->pages[page].holds) {
      continue;
    }
    if (missing.empty() || missing.back().extent != extent) {
      missing.push_back({extent, {}});
    }
    missing.back().pages.push_back(page);
  }
  for (Arena* arena : arenas_of(tag)) {
    if (std::any_of(missing.begin(), missing.end(),
                    [&](const Missing& one) { return one.extent->arena == arena; })) {
      continue;
    }
    for (const auto& extent : arena->extents()) {
      missing.push_back({extent.get(), {}});
    }
    each_live_block(*arena, [&](const Block* block) {
      const auto is_of = [&](const Missing& one) {
        return one.extent == block->extent;
      };
      std::vector<std::uint32_t>& pages =
          std::find_if(missing.begin(), missing.end(), is_of)->pages;
      const Extent& extent = *block->extent;
      for (std::uint32_t page = extent.page_of(block->at);
           extent.address_of(page) < block->end(); ++page) {
        if (!extent.pages[page].holds && (pages.empty() || pages.back() != page)) {
          pages.push_back(page);
        }
      }
    });
  }
  return missing;
}

}  // namespace drivetrain
