// The one thread on which all links live: what is ready, what may be flushed, and the
// shared memory of peers on this host.

#pragma once

#include <vector>

#include "link.hpp"
#include "poller.hpp"

namespace drivetrain {

// Shared memory, which no file descriptor announces.
class Polled {
 public:
  virtual ~Polled() = default;
  virtual void poll() = 0;
  // Asks the peer to ring from now on. Returns false if there is something already.
  virtual bool prepare_sleep() = 0;
};

class Loop final : public EventHandler {
 public:
  Loop();
  ~Loop() override;

  Poller& poller() { return poller_; }

  // Rings this loop's thread; other threads and processes may write to it.
  int bell() const { return bell_; }
  void ring() const;

  void add(Polled& polled) { polled_.push_back(&polled); }
  void remove(const Polled& polled);

  // A link has something to send.
  void mark(Link& link);
  void forget(const Link& link);

  // Does all that can be done without waiting, then waits for more.
  void turn(int timeout_ms);

  void on_event(std::uint32_t events) override;

 private:
  void flush();

  Poller poller_;
  int bell_;
  std::vector<Polled*> polled_;
  std::vector<Link*> dirty_;
};

}  // namespace drivetrain
