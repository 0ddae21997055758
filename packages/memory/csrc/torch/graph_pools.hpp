// Which allocations belong to which memory pool of PyTorch, as a graph has one.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "../driver/driver.hpp"

namespace drivetrain {

// One device. Safe to use from any thread.
class GraphPools {
 public:
  // How PyTorch names a pool, and says which streams allocate from it.
  using Id = std::pair<std::uint64_t, std::uint64_t>;
  using Filter = std::function<bool(void*)>;

  // A pool's number: PyTorch counts those of captures in the first part of their names,
  // and all others in the second.
  static std::uint64_t graph_of(Id id) {
    return id.first == 0 ? 2 * id.second : 2 * id.first + 1;
  }

  // Allocations of the streams that pass the filter belong to the pool from now on.
  void begin(Id id, Filter filter) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Pool& pool = pools_[id];
    pool.graph = graph_of(id);
    ++pool.users;
    active_.push_back({id, pool.graph, std::move(filter)});
    any_ = true;
  }

  // They do no longer.
  void end(Id id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // The last one that began: others may use the same pool.
    const auto ends = [&](const Active& active) { return active.id == id; };
    const auto last = std::find_if(active_.rbegin(), active_.rend(), ends);
    if (last != active_.rend()) {
      active_.erase(std::next(last).base());
    }
    any_ = !active_.empty();
  }

  // A user of the pool is gone. Returns the graph if it was the last one.
  std::optional<std::uint64_t> release(Id id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = pools_.find(id);
    if (found == pools_.end() || --found->second.users > 0) {
      return std::nullopt;
    }
    const std::uint64_t graph = found->second.graph;
    pools_.erase(found);
    return graph;
  }

  // The graph that an allocation on a stream belongs to; 0 for none.
  std::uint64_t graph_of(Stream stream) {
    if (!any_.load(std::memory_order_acquire)) {
      return 0;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto active = active_.rbegin(); active != active_.rend(); ++active) {
      if (active->filter(reinterpret_cast<void*>(stream))) {
        return active->graph;
      }
    }
    return 0;
  }

 private:
  struct Pool {
    std::uint64_t graph = 0;
    std::uint64_t users = 0;
  };

  struct Active {
    Id id;
    std::uint64_t graph;
    Filter filter;
  };

  std::mutex mutex_;
  std::atomic<bool> any_{false};
  std::map<Id, Pool> pools_;
  std::vector<Active> active_;
};

}  // namespace drivetrain
