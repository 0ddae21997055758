// A stream of a machine without a GPU: a thread that does what it is given, in order.

#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

namespace drivetrain {

class HostStream {
 public:
  // Args:
  //   delay_us: Before each piece of work the thread sleeps up to so long, drawn anew,
  //   so
  //     that streams overtake each other; 0 for never.
  //   seed: Of the delays.
  HostStream(unsigned delay_us, std::uint64_t seed);
  // Does what is left first.
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // Safe to call from any thread.
  void push(std::function<void()> work);

 private:
  void run();

  unsigned delay_us_;
  std::mt19937_64 random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace drivetrain
