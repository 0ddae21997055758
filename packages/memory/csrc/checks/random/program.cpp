#include "program.hpp"

#include <algorithm>

namespace drivetrain {

namespace {

constexpr std::size_t kMostLive = 300;
// Where memory is to be left, live blocks have so much of it.
constexpr Bytes kPartAhead = 16;

}  // namespace

void Happened::add(const Happened& other) {
  operations += other.operations;
  out_of_memory += other.out_of_memory;
  refused += other.refused;
  graphs += other.graphs;
  launches += other.launches;
  shared += other.shared;
  destroyed_streams += other.destroyed_streams;
  gates += other.gates;
  sleeps += other.sleeps;
}

Program::Program(Episode& episode, unsigned thread, std::uint64_t seed)
    : episode_(episode),
      conditions_(episode.conditions),
      thread_(thread),
      random_(seed * 8 + thread),
      next_graph_(1 + thread) {
  make_slots(thread);
}

void Program::make_slots(unsigned thread) {
  strict::U64 handle = 0x1000 * (thread + 1);
  for (int device = 0; device < conditions_.num_devices; ++device) {
    if (thread == 0) {
      slots_.push_back({0, device, false, false, true, 0, 0, 0});
    }
    for (int i = 0; i < 3; ++i) {
      const bool blocking = i == 2 && thread == 0;
      slots_.push_back({handle++, device, false, blocking, false, 0, 0, 0});
    }
    for (int i = 0; conditions_.external && i < 2; ++i) {
      slots_.push_back({handle++, device, true, false, false, 0, 0, 0});
    }
  }
  for (Slot& slot : slots_) {
    open(slot);
  }
}

void Program::open(Slot& slot) {
  slot.id = strict::locked([&](strict::State& now) {
    return slot.handle == 0
               ? strict::find_stream(now, 0, slot.device)->id
               : strict::make_stream(now, slot.handle, slot.device, slot.blocking).id;
  });
  slot.alive = true;
  ++slot.life;
}

void Program::run(std::uint64_t operations) {
  for (std::uint64_t i = 0; i < operations; ++i) {
    if (conditions_.one_refusal && random_() % 60 == 0) {
      arm_refusal();
    }
    operate();
    if (random_() % 4 == 0) {
      strict::advance_any(random_(), 1 + random_() % 8);
    }
    if (conditions_.ahead) {
      change_gates();
      find_hangs();
    }
    ++happened_.operations;
    episode_.progress.fetch_add(1, std::memory_order_relaxed);
  }
}

void Program::operate() {
  const unsigned kind = random_() % 1000;
  if (kind < 450) {
    allocate();
  } else if (kind < 850) {
    free_any();
  } else if (kind < 890) {
    use_any();
  } else if (kind < 950) {
    share_any();
  } else if (kind < 980) {
    change_graphs();
  } else if (kind < 988) {
    change_stream();
  } else if (kind < 994) {
    look_up();
  } else if (kind < 996) {
    change_sleep();
  } else if (kind < 998) {
    change_limits();
  } else if (!conditions_.ahead) {
    const int device = slots_[any_slot()].device;
    attempt([&] { allocator(device).trim(); });
  }
}

// Blocks -----------------------------------------------------------------------------

Bytes Program::draw_size() {
  const Bytes chunk = strict::kChunk;
  switch (random_() % 16) {
    case 0:
      return 1 + random_() % (conditions_.num_chunks * chunk / 6);
    case 1:
    case 2:
      return (1 + random_() % 6) * chunk;
    case 3:
    case 4:
    case 5:
    case 6:
      return 1 + random_() % (5 * chunk);
    case 7:
    case 8:
      return 1 + random_() % chunk;
    default:
      return 1 + random_() % (random_() % 2 == 0 ? chunk / 2 : chunk / 64);
  }
}

void Program::allocate() {
  const std::size_t index = any_slot();
  const Slot& slot = slots_[index];
  const Bytes most = conditions_.num_chunks * strict::kChunk / kPartAhead;
  if (!slot.alive || live_.size() >= kMostLive) {
    return free_any();
  }
  const Bytes size =
      conditions_.ahead ? draw_size() % (8 * strict::kChunk) + 1 : draw_size();
  if (conditions_.ahead && live_bytes_ + size > most) {
    return free_any();
  }
  const bool tagged = conditions_.sleeps && slot.graph == 0 && random_() % 4 == 0;
  const std::uint64_t tag = tagged && asleep_ != slot.device ? kFirstTag + thread_ : 0;
  const auto tenant = std::make_shared<Tenant>();
  const bool given = attempt([&] {
    tenant->at = allocator(slot.device).allocate(size, slot.handle, {slot.graph, tag});
  });
  if (!given) {
    if (conditions_.ahead) {
      episode_.findings.complain("a request was refused while memory was left");
    }
    for (int i = 0; i < 3; ++i) {
      free_any();
    }
    return;
  }
  tenant->name = episode_.next_name++;
  tenant->size = round_up(size, kUnit);
  tenant->device = slot.device;
  tenant->stream = slot.handle;
  tenant->slot = index;
  tenant->life = slot.life;
  tenant->graph = slot.graph;
  tenant->tag = tag;
  strict::locked([&](strict::State& now) { episode_.ownership.own(now, *tenant); });
  live_.push_back(tenant);
  live_bytes_ += tenant->size;
  work(tenant, index, true);
}

TenantRef Program::take_any() {
  const std::size_t index = random_() % live_.size();
  TenantRef tenant = std::move(live_[index]);
  live_[index] = std::move(live_.back());
  live_.pop_back();
  live_bytes_ -= tenant->size;
  return tenant;
}

void Program::free_any() {
  TenantRef other;
  {
    const std::lock_guard<std::mutex> lock(episode_.mutex);
    if (!episode_.handed_over.empty()) {
      other = episode_.handed_over.back();
      episode_.handed_over.pop_back();
    }
  }
  if (other != nullptr) {
    free(other);
  }
  if (live_.empty()) {
    return;
  }
  const TenantRef tenant = take_any();
  work(tenant, tenant->slot, false);
  if (tenant->graph == 0 && tenant->tag == 0 && random_() % 32 == 0) {
    const std::lock_guard<std::mutex> lock(episode_.mutex);
    episode_.handed_over.push_back(tenant);
    return;
  }
  free(tenant);
}

void Program::free(const TenantRef& tenant) {
  strict::locked([&](strict::State&) { episode_.ownership.disown(*tenant); });
  Allocator& owner = allocator(tenant->device);
  if (attempt([&] { owner.free(tenant->at); })) {
    return;
  }
  // What cannot be given back lives on.
  const auto block = owner.block_around(tenant->at);
  if (block && block->first == tenant->at) {
    strict::locked([&](strict::State& now) { episode_.ownership.own(now, *tenant); });
    const std::lock_guard<std::mutex> lock(episode_.mutex);
    episode_.handed_over.push_back(tenant);
  }
}

void Program::use_any() {
  if (!live_.empty()) {
    const TenantRef& tenant = live_[random_() % live_.size()];
    work(tenant, tenant->slot, false);
  }
}

// A block is used on another stream of the thread too, as a program says that must.
void Program::share_any() {
  const std::size_t index = any_slot();
  const Slot& other = slots_[index];
  if (live_.empty() || !other.alive) {
    return;
  }
  const TenantRef tenant = live_[random_() % live_.size()];
  if (is_asleep(*tenant)) {
    return;
  }
  if (gate_ != 0 && tenant->slot == gate_slot_) {
    // Nobody is to wait for the receive but by its send.
    return;
  }
  const Slot& own = slots_[tenant->slot];
  const Address inside = tenant->at + random_() % tenant->size;
  const bool known =
      attempt([&] { allocator(tenant->device).record_stream(inside, other.handle); });
  const bool lives = own.alive && own.life == tenant->life;
  if (!known || !lives || tenant->graph != 0 || !tenant->written || !takes_work(own) ||
      !takes_work(other) || (other.handle == 0 && other.device != tenant->device)) {
    // The legacy stream of another device has the same name as that of the block's own.
    return;
  }
  ++happened_.shared;
  strict::order(other.handle, own.handle, other.device, own.device);
  submit(tenant, other, false);
}

void Program::look_up() {
  if (live_.empty()) {
    return;
  }
  const Tenant& tenant = *live_[random_() % live_.size()];
  Allocator& owner = allocator(tenant.device);
  const auto found = owner.block_around(tenant.at + random_() % tenant.size);
  if (!found || found->first != tenant.at || found->second != tenant.size ||
      !owner.owns(tenant.at)) {
    episode_.findings.complain("a live block is not found by an address inside it");
  }
}

// Work -------------------------------------------------------------------------------

bool Program::takes_work(const Slot& slot) const {
  if (!slot.alive || slot.graph != 0) {
    return false;
  }
  // The legacy stream must be left alone while one that waits for it is captured.
  return slot.handle != 0 ||
         std::none_of(slots_.begin(), slots_.end(), [&](const Slot& other) {
           return other.blocking && other.graph != 0 && other.device == slot.device;
         });
}

void Program::work(const TenantRef& tenant, std::size_t index, bool writes) {
  Slot& slot = slots_[index];
  if (!slot.alive || slot.life != tenant->life || is_asleep(*tenant)) {
    return;
  }
  if (slot.graph != 0) {
    // Part of the graph, if its own memory; else it is not used meanwhile.
    Graph* graph = slot.graph == tenant->graph ? graph_of(slot.graph) : nullptr;
    if (graph != nullptr) {
      const auto which = std::find(graph->slots.begin(), graph->slots.end(), index) -
                         graph->slots.begin();
      graph->tasks[static_cast<std::size_t>(which)].push_back({tenant, writes});
    }
    return;
  }
  if (takes_work(slot) && (writes || tenant->written)) {
    tenant->written = true;
    submit(tenant, slot, writes);
  }
}

void Program::submit(const TenantRef& tenant, const Slot& slot, bool writes) {
  strict::locked([&](strict::State& now) {
    strict::Stream& stream = now.streams.at(slot.id);
    const auto task = std::make_shared<Task>();
    task->tenant = tenant;
    task->writes = writes;
    Ownership& ownership = episode_.ownership;
    ownership.give(now, *task);
    strict::give(now, stream,
                 {[&now, &ownership, task] { ownership.run(now, *task); }, 0, 0, 0});
  });
}

void Program::finish(const Slot& slot) {
  strict::locked([&](strict::State& now) {
    const auto found = now.streams.find(slot.id);
    if (found != now.streams.end()) {
      strict::finish(now, slot.id, found->second.given);
    }
  });
}

void Program::end() {
  if (gate_ != 0) {
    open_gate();
  }
  for (Graph& graph : graphs_) {
    if (!graph.captured) {
      end_capture(graph);
    }
  }
  while (!graphs_.empty()) {
    release(graphs_.size() - 1);
  }
  while (!live_.empty()) {
    const TenantRef tenant = take_any();
    work(tenant, tenant->slot, false);
    free(tenant);
  }
}

}  // namespace drivetrain
