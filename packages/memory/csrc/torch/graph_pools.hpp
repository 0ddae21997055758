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
    ++users_[id];
    active_.push_back({id, std::move(filter)});
    any_ = true;
  }

  // They do no longer. Returns whether they did.
  bool end(Id id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // The last one that began: others may use the same pool.
    const auto ends = [&](const Active& active) { return active.id == id; };
    const auto last = std::find_if(active_.rbegin(), active_.rend(), ends);
    if (last == active_.rend()) {
      return false;
    }
    active_.erase(std::next(last).base());
    any_ = !active_.empty();
    return true;
  }

  // A user of the pool is gone. Returns the graph if it was the last one.
  std::optional<std::uint64_t> release(Id id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = users_.find(id);
    if (found == users_.end() || --found->second > 0) {
      return std::nullopt;
    }
    users_.erase(found);
    return graph_of(id);
  }

  // The graph that an allocation on a stream belongs to; 0 for none.
  std::uint64_t graph_of(Stream stream) {
    if (!any_.load(std::memory_order_acquire)) {
      return 0;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto active = active_.rbegin(); active != active_.rend(); ++active) {
      if (active->filter(reinterpret_cast<void*>(stream))) {
        return graph_of(active->id);
      }
    }
    return 0;
  }

 private:
  struct Active {
    Id id;
    Filter filter;
  };

  std::mutex mutex_;
  std::atomic<bool> any_{false};
  std::map<Id, std::uint64_t> users_;
  std::vector<Active> active_;
};

}  // namespace drivetrain
