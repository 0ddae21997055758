// The part of a random program in which things change around it: streams, limits,
// sleep, messages between streams, refusals.

#include <algorithm>
#include <utility>

#include "program.hpp"

namespace drivetrain {

namespace {

constexpr strict::Result kUnknownError = 999;

}  // namespace

void Program::change_stream() {
  Slot& slot = slots_[any_slot()];
  if (!slot.external || slot.graph != 0) {
    return;
  }
  if (!slot.alive) {
    // A driver gives the handle to a new stream when the old one is done.
    finish(slot);
    return open(slot);
  }
  if (random_() % 2 == 0) {
    finish(slot);
  }
  strict::locked([&](strict::State& now) {
    strict::destroy_stream(now, now.streams.at(slot.id));
  });
  slot.alive = false;
  ++happened_.destroyed_streams;
}

void Program::change_limits() {
  if (!conditions_.others || thread_ != 0) {
    return;
  }
  const int device = slots_[any_slot()].device;
  const Bytes whole = conditions_.num_chunks * strict::kChunk;
  if (random_() % 2 == 0) {
    const Bytes most = random_() % 2 == 0 ? whole : whole / 2 + random_() % (whole / 2);
    attempt([&] { allocator(device).limit(most); });
    return;
  }
  strict::locked([&](strict::State& now) {
    const Bytes extra = random_() % 2 == 0 ? 0 : random_() % (whole / 4);
    now.total = whole - extra + conditions_.slack;
  });
}

bool Program::is_asleep(const Tenant& tenant) const {
  return tenant.tag != 0 && tenant.device == asleep_;
}

void Program::change_sleep() {
  const bool captures = std::any_of(graphs_.begin(), graphs_.end(),
                                    [](const Graph& graph) { return !graph.captured; });
  if (!conditions_.sleeps || captures) {
    return;
  }
  if (asleep_ >= 0) {
    wake_up();
  } else {
    fall_asleep(slots_[any_slot()].device);
  }
}

void Program::fall_asleep(int device) {
  keeps_ = random_() % 2 == 0;
  if (!attempt([&] { allocator(device).sleep(kFirstTag + thread_, keeps_); })) {
    return;
  }
  asleep_ = device;
  ++happened_.sleeps;
  for (const TenantRef& tenant : live_) {
    if (is_asleep(*tenant)) {
      strict::locked([&](strict::State&) { episode_.ownership.disown(*tenant); });
      tenant->pieces.clear();
    }
  }
}

// Stays asleep where the device has too little memory.
void Program::wake_up() {
  const int device = asleep_;
  if (!attempt([&] { allocator(device).wake(kFirstTag + thread_); })) {
    return;
  }
  asleep_ = -1;
  for (const TenantRef& tenant : live_) {
    if (tenant->tag == 0 || tenant->device != device) {
      continue;
    }
    strict::locked([&](strict::State& now) { episode_.ownership.own(now, *tenant); });
    // What was not kept is written anew.
    const bool was_written = tenant->written;
    tenant->written = was_written && keeps_;
    work(tenant, tenant->slot, was_written && !keeps_);
  }
}

void Program::change_gates() {
  if (gate_ == 0 && random_() % 20 == 0) {
    gate_slot_ = any_slot();
    if (takes_work(slots_[gate_slot_])) {
      const Slot& slot = slots_[gate_slot_];
      gate_ = strict::submit_gate(slot.handle, slot.device);
      gate_left_ = 1 + random_() % 30;
      ++happened_.gates;
    }
  } else if (gate_ != 0 && gate_left_-- == 0) {
    open_gate();
  }
}

void Program::open_gate() {
  std::size_t index = gate_slot_;
  while (index == gate_slot_ || !takes_work(slots_[index])) {
    index = any_slot();
  }
  strict::submit_opening(slots_[index].handle, slots_[index].device, gate_);
  gate_ = 0;
}

void Program::find_hangs() {
  const std::string hang = strict::locked(
      [](strict::State& now) { return std::exchange(now.offences.first_hang, {}); });
  if (!hang.empty()) {
    episode_.findings.complain("a wait that cannot end while memory is left, " + hang);
  }
}

void Program::arm_refusal() {
  const std::size_t which = random_() % kRefusable.size();
  const strict::Result result =
      random_() % 2 == 0 ? strict::kOutOfMemory : kUnknownError;
  strict::refuse_nothing();
  strict::refuse(kRefusable[which], random_() % 6, 1, 0, result);
}

}  // namespace drivetrain
