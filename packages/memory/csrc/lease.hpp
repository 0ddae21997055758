// Who still has memory that was shared with other processes.
//
// The owner has a file in memory. Who takes the memory writes a byte to it, and locks
// it for as long as it has the memory; the system undoes the lock of a process that
// ends.

#pragma once

#include <sys/types.h>

#include <cstdint>

namespace drivetrain {

// Another process of this user.
class OtherProcess {
 public:
  // Throws MisuseError when it is gone.
  explicit OtherProcess(pid_t pid);
  ~OtherProcess();
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  // Returns its descriptor as one of this process, which becomes the caller's.
  //
  // Throws MisuseError when it is out of reach.
  int fetch(int file) const;

 private:
  pid_t pid_;
  int handle_;
};

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
  int file() const { return file_; }

  // One more is told of the memory, and will take it.
  void send() { ++sent_; }

  // Whether somebody has the memory, or is still to take what was sent.
  bool in_use() const;

 private:
  int file_;
  std::uint64_t sent_ = 0;
};

// The side of who has the memory, for as long as the object lives.
class LeaseHold {
 public:
  // Args:
  //   pid, file: The owner, and its descriptor of the lease.
  //
  // Throws MisuseError when the owner is gone or out of reach.
  LeaseHold(pid_t pid, int file);
  ~LeaseHold();
  LeaseHold(const LeaseHold&) = delete;
  LeaseHold& operator=(const LeaseHold&) = delete;

 private:
  int file_;
};

}  // namespace drivetrain
