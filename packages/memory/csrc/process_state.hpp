// What the allocators of a process share.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace drivetrain {

// Safe to use from any thread.
class ProcessState {
 public:
  // From now on graphs may be captured, or no longer, also on streams that are not
  // known: the host waits for nothing that is not its own meanwhile.
  void expect_captures(bool are_coming) { captures_ += are_coming ? 1 : -1; }
  bool expects_captures() const { return captures_.load() > 0; }

  // The number of a tag, never 0; a name that was not given before has a new one.
  //
  // Throws MisuseError for an empty name.
  std::uint64_t tag_of(const std::string& name);
  // Throws MisuseError for a name that was not given before.
  std::uint64_t known_tag(const std::string& name) const;
  // Names the memory of a tag, as "memory with the tag 'weights'".
  std::string memory_of(std::uint64_t tag) const;

 private:
  std::atomic<int> captures_{0};
  mutable std::mutex mutex_;
  std::vector<std::string> tags_;
};

}  // namespace drivetrain
