// A lock that costs one atomic exchange when nobody else wants it.

#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace drivetrain {

// A holder is gone after some tens of nanoseconds, unless it calls the driver; who
// waits therefore spins a little, and then sleeps. Use it with std::lock_guard.
class Lock {
 public:
  void lock() {
    if (!held_.exchange(true, std::memory_order_acquire)) {
      return;
    }
    wait();
  }

  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  static constexpr int kSpins = 200;
  static constexpr auto kSleep = std::chrono::microseconds(5);

  void wait() {
    for (int spins = 0;; ++spins) {
      if (!held_.load(std::memory_order_relaxed) &&
          !held_.exchange(true, std::memory_order_acquire)) {
        return;
      }
      if (spins < kSpins) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kSleep);
      }
    }
  }

  std::atomic<bool> held_{false};
};

}  // namespace drivetrain
