#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace sim {

using Work = std::function<void()>;
// Makes work when it is queued: a graph calls it again for each replay.
using MakeWork = std::function<Work()>;

// A stream: one thread that runs what is queued, first in, first out.
//
// The thread is never joined: a program may end while a kernel runs, and the queue
// lives for as long as the process.
class StreamQueue {
 public:
  StreamQueue(int device, std::int64_t id);
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;

  // Queues work that is dropped once the device is broken.
  void push(Work work);
  void push_made(MakeWork make);

  // Queues what others wait for, so that it runs on a broken device too.
  void push_always(Work work);

  // Between these two, what is pushed is kept for a graph and does not run.
  void begin_capture();
  std::vector<MakeWork> end_capture();
  bool is_capturing();

  // The number of entries queued so far: work after which something may happen.
  std::uint64_t position();
  bool has_passed(std::uint64_t position);
  bool is_idle() { return has_passed(position()); }

  // Waits until a position is passed. It ends early on a broken device.
  void wait_passed(std::uint64_t position);

  // Waits for all that is queued, and raises what the device has to say.
  void synchronize();

  // Drops what is queued, and what will be; then waits for the running entry.
  void begin_quiesce();
  void wait_quiet(std::chrono::steady_clock::time_point deadline);

  int device() const { return device_; }
  std::int64_t id() const { return id_; }

 private:
  static constexpr std::uint64_t kNobody = ~std::uint64_t{0};

  struct Entry {
    Work work;
    bool always = false;
  };

  bool capture(const MakeWork& make);
  void enqueue(Entry entry);
  void run();
  void run_entry(Entry& entry);

  const int device_;
  const std::int64_t id_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::condition_variable finished_;
  std::deque<Entry> entries_;
  std::uint64_t num_queued_ = 0;
  std::uint64_t num_done_ = 0;
  // The first position that somebody waits for: others need no wake-up.
  std::uint64_t next_wanted_ = kNobody;
  std::optional<std::vector<MakeWork>> captured_;
  bool quiescing_ = false;
};

}  // namespace sim
