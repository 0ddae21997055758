#include "stream_queue.hpp"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <thread>

#include "counters.hpp"
#include "gil.hpp"
#include "health.hpp"

namespace sim {
namespace {

// A device breaks without a signal to those who wait: they look at it this often.
constexpr auto kLookAgain = std::chrono::milliseconds(20);

// Python's signal handlers belong to the threads of the program.
void block_signals() {
  sigset_t signals;
  sigfillset(&signals);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    sigdelset(&signals, fault);
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

StreamQueue::StreamQueue(int device, std::int64_t id) : device_(device), id_(id) {
  std::thread([this] { run(); }).detach();
}

void StreamQueue::push(Work work) {
  if (capture([work] { return work; })) return;
  enqueue({std::move(work), /*always=*/false});
}

void StreamQueue::push_made(MakeWork make) {
  if (capture(make)) return;
  enqueue({make(), /*always=*/false});
}

void StreamQueue::push_always(Work work) {
  if (capture([work] { return work; })) return;
  enqueue({std::move(work), /*always=*/true});
}

void StreamQueue::begin_capture() {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(!captured_, "a graph is already being captured on this stream");
  captured_.emplace();
}

std::vector<MakeWork> StreamQueue::end_capture() {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(captured_, "no graph is being captured on this stream");
  std::vector<MakeWork> captured = std::move(*captured_);
  captured_.reset();
  return captured;
}

bool StreamQueue::is_capturing() {
  std::lock_guard lock(mutex_);
  return captured_.has_value();
}

bool StreamQueue::capture(const MakeWork& make) {
  std::lock_guard lock(mutex_);
  if (captured_) captured_->push_back(make);
  return captured_.has_value();
}

void StreamQueue::enqueue(Entry entry) {
  ++counters().launches;
  std::lock_guard lock(mutex_);
  if (quiescing_ && !entry.always) return;
  entries_.push_back(std::move(entry));
  ++num_queued_;
  arrived_.notify_one();
}

std::uint64_t StreamQueue::position() {
  std::lock_guard lock(mutex_);
  return num_queued_;
}

bool StreamQueue::has_passed(std::uint64_t position) {
  std::lock_guard lock(mutex_);
  return num_done_ >= position;
}

void StreamQueue::wait_passed(std::uint64_t position) {
  ReleaseGil release;
  std::unique_lock lock(mutex_);
  while (num_done_ < position && !is_broken(device_)) {
    next_wanted_ = std::min(next_wanted_, position);
    finished_.wait_for(lock, kLookAgain);
  }
}

void StreamQueue::synchronize() {
  TORCH_CHECK(!is_capturing(),
              "a call that waits for a stream is not allowed while a graph is being "
              "captured on it");
  ++counters().synchronizations;
  wait_passed(position());
  check_wait(device_);
}

void StreamQueue::begin_quiesce() {
  std::lock_guard lock(mutex_);
  quiescing_ = true;
  num_done_ += std::erase_if(entries_, [](const Entry& e) { return !e.always; });
}

void StreamQueue::wait_quiet(std::chrono::steady_clock::time_point deadline) {
  ReleaseGil release;
  std::unique_lock lock(mutex_);
  next_wanted_ = std::min(next_wanted_, num_queued_);
  finished_.wait_until(lock, deadline, [&] { return num_done_ >= num_queued_; });
}

void StreamQueue::run() {
  const std::string name = "sim" + std::to_string(device_) + "." + std::to_string(id_);
  pthread_setname_np(pthread_self(), name.c_str());
  block_signals();
  for (;;) {
    Entry entry;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [&] { return !entries_.empty(); });
      entry = std::move(entries_.front());
      entries_.pop_front();
    }
    run_entry(entry);
    // What the work holds must be gone before anybody is told that it is done.
    entry.work = nullptr;
    std::lock_guard lock(mutex_);
    ++num_done_;
    if (num_done_ < next_wanted_) continue;
    next_wanted_ = kNobody;
    finished_.notify_all();
  }
}

void StreamQueue::run_entry(Entry& entry) {
  if (!entry.always && is_broken(device_)) return;
  try {
    entry.work();
  } catch (const c10::Error& error) {
    fail_op(device_, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail_op(device_, error.what());
  }
}

}  // namespace sim
