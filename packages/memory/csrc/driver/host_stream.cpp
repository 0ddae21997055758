#include "host_stream.hpp"

#include <chrono>
#include <utility>

namespace drivetrain {

HostStream::HostStream(unsigned delay_us, std::uint64_t seed)
    : delay_us_(delay_us), random_(seed), thread_([this] { run(); }) {}

HostStream::~HostStream() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HostStream::push(std::function<void()> work) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void HostStream::run() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !work_.empty(); });
      if (work_.empty()) {
        return;
      }
      work = std::move(work_.front());
      work_.pop_front();
    }
    if (delay_us_ > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % delay_us_));
    }
    work();
  }
}

}  // namespace drivetrain
