// Who still has memory that was shared with other processes.
//
// The owner has a file in memory. Who takes the memory locks it for as long as it has
// the memory, and writes a byte to it; the system undoes the lock of a process that
// ends. The owner ends the lease by a lock that excludes all others.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <utility>

#include "descriptor.hpp"

namespace drivetrain {

// Another process of this user.
class OtherProcess {
 public:
  // Throws MisuseError when it is gone.
  explicit OtherProcess(pid_t pid);

  // Returns its descriptor as one of this process, which becomes the caller's.
  //
  // Throws MisuseError when it is out of reach.
  int fetch(int file) const;

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
  Descriptor handle_;
};

// The owner's descriptor of a lease, and a number that no other lease has: a descriptor
// that was closed names something else later.
using LeaseId = std::pair<int, std::uint64_t>;

// The owner's side.
class Lease {
 public:
  // Lets processes of the same user fetch descriptors of this one, where the system
  // asks (prctl PR_SET_PTRACER).
  //
  // Throws DriverError when there is no descriptor left.
  Lease();
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // By which others take part.
  LeaseId id() const { return {file_.get(), number_}; }

  // One more is told of the memory, and will take it.
  void send() { ++sent_; }

  // Returns false while somebody has the memory, or is still to take what was sent.
  // After true nobody takes it any more.
  bool end();

 private:
  Descriptor file_;
  std::uint64_t number_;
  std::uint64_t sent_ = 0;
};

// The side of who has the memory, for as long as the object lives.
class LeaseHold {
 public:
  // Throws MisuseError when the owner is out of reach, or the lease has ended.
  LeaseHold(const OtherProcess& owner, LeaseId lease);

 private:
  Descriptor file_;
};

}  // namespace drivetrain
