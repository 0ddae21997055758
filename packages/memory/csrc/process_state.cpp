#include "process_state.hpp"

#include <algorithm>

#include "error.hpp"

namespace drivetrain {

std::uint64_t ProcessState::tag_of(const std::string& name) {
  if (name.empty()) {
    throw MisuseError("a tag has a name");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find(tags_.begin(), tags_.end(), name);
  const auto before = static_cast<std::uint64_t>(found - tags_.begin());
  if (found == tags_.end()) {
    tags_.push_back(name);
  }
  return before + 1;
}

std::uint64_t ProcessState::known_tag(const std::string& name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find(tags_.begin(), tags_.end(), name);
  if (found == tags_.end()) {
    throw MisuseError("nothing has the tag '" + name + "': allocate inside of tag('" +
                      name + "')");
  }
  return static_cast<std::uint64_t>(found - tags_.begin()) + 1;
}

std::string ProcessState::memory_of(std::uint64_t tag) const {
  if (tag == 0) {
    return "memory without a tag";
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::string name = tag <= tags_.size() ? "'" + tags_[tag - 1] + "'"
                                               : "of number " + std::to_string(tag);
  return "memory with the tag " + name;
}

}  // namespace drivetrain
