// Runs a function on several threads, the caller's among them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace drivetrain {

// Threads live for one call: starting one takes some 20 us, and a pool would not
// outlive a fork. Where the system has no thread left, fewer do the work.
template <class Work>
void run_on_threads(int num_threads, std::size_t num_turns, const Work& work) {
  const std::size_t wanted = std::min<std::size_t>(
      static_cast<std::size_t>(std::max(num_threads, 1)), num_turns);
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < wanted; ++i) {
    try {
      others.emplace_back(work);
    } catch (const std::system_error&) {
      break;
    }
  }
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace drivetrain
