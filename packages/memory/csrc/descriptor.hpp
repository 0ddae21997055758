// A file descriptor of this process alone.

#pragma once

#include <cstdint>

namespace drivetrain {

// Closed with the object, and in a child that is forked at once: what the child had
// open would keep the memory behind it for as long as the child lives. Safe to use from
// any thread.
class Descriptor {
 public:
  // Lets the process open more where few are left, as far as its hard limit allows.
  //
  // Args:
  //   file: Which; less than 0 for none, as a system call returns it.
  explicit Descriptor(int file);
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  // Less than 0 for none, and in a child.
  int get() const;

 private:
  int file_;
  // After how many forks, from parent to child, it was made.
  std::uint64_t generation_ = 0;
};

}  // namespace drivetrain
