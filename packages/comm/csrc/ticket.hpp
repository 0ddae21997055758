// How a thread waits for a collective that the engine's thread carries out.

#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>

namespace drivetrain {

// Safe to use from any thread.
class Ticket {
 public:
  // An empty error means success.
  void finish(std::string error) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      done_ = true;
      ended_at_ = std::chrono::steady_clock::now();
      error_ = std::move(error);
    }
    changed_.notify_all();
  }

  bool wait_for(std::chrono::nanoseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, timeout, [this] { return done_; });
  }

  bool is_done() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }

  // When it ended, in seconds of the monotonic clock.
  double ended_at_s() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::chrono::duration<double>(ended_at_.time_since_epoch()).count();
  }

  std::string error() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::chrono::steady_clock::time_point ended_at_;
  std::string error_;
};

}  // namespace drivetrain
