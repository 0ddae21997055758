#include "event.hpp"

#include <c10/util/Exception.h>

#include <algorithm>

#include "counters.hpp"
#include "gil.hpp"
#include "health.hpp"

namespace sim {
namespace {

constexpr auto kLookAgain = std::chrono::milliseconds(20);

}  // namespace

void Event::record(StreamQueue& queue) {
  check_launch(queue.device());
  const bool is_capturing = queue.is_capturing();
  std::uint64_t version = 0;
  {
    std::lock_guard lock(mutex_);
    version = ++num_recorded_;
    device_ = queue.device();
    is_captured_ = is_capturing;
  }
  queue.push_always([self = shared_from_this(), version] { self->reach(version); });
}

void Event::reach(std::uint64_t version) {
  std::lock_guard lock(mutex_);
  num_reached_ = std::max(num_reached_, version);
  time_ = Clock::now();
  reached_.notify_all();
}

void Event::block(StreamQueue& queue) {
  check_launch(queue.device());
  if (!queue.is_capturing()) check_not_captured();
  const std::uint64_t version = num_recorded();
  {
    std::lock_guard lock(mutex_);
    if (num_reached_ >= version) return;
  }
  // It ends on a broken device too: whoever records an event always reaches it.
  queue.push_always(
      [self = shared_from_this(), version] { self->wait_reached(version); });
}

void Event::wait_reached(std::uint64_t version) {
  std::unique_lock lock(mutex_);
  reached_.wait(lock, [&] { return num_reached_ >= version; });
}

std::uint64_t Event::num_recorded() {
  std::lock_guard lock(mutex_);
  return num_recorded_;
}

void Event::check_not_captured() {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(!is_captured_,
              "this event was recorded while a graph was being captured: it is part of "
              "the graph, and nothing else can wait for it");
}

bool Event::query() {
  check_not_captured();
  int device = 0;
  {
    std::lock_guard lock(mutex_);
    if (num_reached_ >= num_recorded_) return true;
    device = device_;
  }
  check_launch(device);
  return false;
}

void Event::synchronize() {
  check_not_captured();
  ++counters().synchronizations;
  int device = 0;
  {
    ReleaseGil release;
    std::unique_lock lock(mutex_);
    if (num_recorded_ == 0) return;
    const std::uint64_t version = num_recorded_;
    device = device_;
    const auto is_over = [&] { return num_reached_ >= version || is_broken(device); };
    while (!reached_.wait_for(lock, kLookAgain, is_over)) {
    }
  }
  check_wait(device);
}

double Event::elapsed_ms(Event& end) {
  TORCH_CHECK(timing_ && end.timing_,
              "both events need enable_timing=True to tell the time between them");
  TORCH_CHECK(num_recorded() > 0 && end.num_recorded() > 0,
              "both events must be recorded before the time between them is known");
  TORCH_CHECK(query() && end.query(),
              "both events must be completed before the time between them is known");
  if (&end == this) return 0.0;
  std::scoped_lock lock(mutex_, end.mutex_);
  return std::chrono::duration<double, std::milli>(end.time_ - time_).count();
}

}  // namespace sim
