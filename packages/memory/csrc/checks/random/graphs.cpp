// The part of a random program that captures graphs, launches them and lets them go.

#include <algorithm>

#include "program.hpp"

namespace drivetrain {

namespace {

constexpr std::size_t kMostGraphs = 3;

}  // namespace

Program::Graph* Program::graph_of(std::uint64_t id) {
  const auto found = std::find_if(graphs_.begin(), graphs_.end(),
                                  [&](const Graph& graph) { return graph.id == id; });
  return found == graphs_.end() ? nullptr : &*found;
}

bool Program::is_whole(const Graph& graph) const {
  for (std::size_t i = 0; i < graph.slots.size(); ++i) {
    const Slot& slot = slots_[graph.slots[i]];
    if (!slot.alive || slot.life != graph.lives[i] || !takes_work(slot)) {
      return false;
    }
  }
  return true;
}

void Program::change_graphs() {
  if (!conditions_.captures) {
    return;
  }
  if (graphs_.empty() || (graphs_.size() < kMostGraphs && random_() % 3 == 0)) {
    return begin_capture();
  }
  const std::size_t index = random_() % graphs_.size();
  Graph& graph = graphs_[index];
  if (!graph.captured) {
    end_capture(graph);
  } else if (random_() % 4 == 0) {
    release(index);
  } else if (is_whole(graph)) {
    launch(graph);
  }
}

void Program::begin_capture() {
  Graph graph{next_graph_, 0, false, {}, {}, {}};
  const std::size_t first = any_slot();
  const std::size_t second = random_() % 3 == 0 ? any_slot() : first;
  for (const std::size_t index : {first, second}) {
    const Slot& slot = slots_[index];
    const bool fits = slot.alive && slot.handle != 0 && slot.graph == 0 &&
                      slot.device == slots_[first].device;
    const bool fresh = graph.slots.empty() || graph.slots[0] != index;
    if (fits && fresh) {
      graph.slots.push_back(index);
    }
  }
  if (graph.slots.empty() || graph.slots[0] != first) {
    return;
  }
  next_graph_ += 16;
  // As PyTorch tells of a capture before it begins.
  episode_.process->expect_captures(true);
  for (const std::size_t index : graph.slots) {
    Slot& slot = slots_[index];
    slot.graph = graph.id;
    graph.lives.push_back(slot.life);
    graph.tasks.emplace_back();
    strict::locked([&](strict::State& now) {
      strict::Stream& stream = now.streams.at(slot.id);
      if (graph.capture == 0) {
        graph.capture = strict::begin_capture(now, stream, 0);
      } else {
        stream.capture = graph.capture;
      }
    });
  }
  graphs_.push_back(std::move(graph));
  ++happened_.graphs;
}

void Program::end_capture(Graph& graph) {
  const bool whole = strict::locked(
      [&](strict::State& now) { return strict::end_capture(now, graph.capture); });
  if (!whole) {
    episode_.findings.complain("a capture was spoilt");
  }
  for (const std::size_t index : graph.slots) {
    slots_[index].graph = 0;
  }
  episode_.process->expect_captures(false);
  graph.captured = true;
}

// The work of its second stream runs beside that of the first.
void Program::launch(Graph& graph) {
  const Slot& first = slots_[graph.slots.front()];
  const Slot& last = slots_[graph.slots.back()];
  strict::order(last.handle, first.handle, last.device, first.device);
  for (std::size_t i = 0; i < graph.slots.size(); ++i) {
    for (const Recorded& recorded : graph.tasks[i]) {
      recorded.tenant->written = true;
      submit(recorded.tenant, slots_[graph.slots[i]], recorded.writes);
    }
  }
  strict::order(first.handle, last.handle, first.device, last.device);
  ++happened_.launches;
}

// Not before what was launched is done.
void Program::release(std::size_t index) {
  const Graph graph = std::move(graphs_[index]);
  graphs_.erase(graphs_.begin() + static_cast<std::ptrdiff_t>(index));
  for (const std::size_t slot : graph.slots) {
    finish(slots_[slot]);
  }
  const int device = slots_[graph.slots.front()].device;
  attempt([&] { allocator(device).release_graph(graph.id); });
  for (const TenantRef& tenant : live_) {
    if (tenant->graph == graph.id) {
      // Its memory is its own by now, and nobody else's.
      strict::locked([&](strict::State& now) {
        episode_.ownership.disown(*tenant);
        tenant->graph = 0;
        episode_.ownership.own(now, *tenant);
      });
    }
  }
}

}  // namespace drivetrain
