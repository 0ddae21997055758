// Waits for file descriptors, on one thread.

#pragma once

#include <sys/epoll.h>

#include <cstdint>

namespace drivetrain {

class EventHandler {
 public:
  virtual ~EventHandler() = default;
  virtual void on_event(std::uint32_t events) = 0;
};

class Poller {
 public:
  Poller();
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  void add(int fd, std::uint32_t events, EventHandler& handler);
  void change(int fd, std::uint32_t events, EventHandler& handler);
  // After it the handler is not called again, not even in the same turn.
  void remove(int fd, const EventHandler& handler);

  // Calls the handlers of what is ready; a negative timeout waits without end.
  void wait(int timeout_ms);

 private:
  int epoll_;
  int num_events_ = 0;
  epoll_event buffer_[64];
};

}  // namespace drivetrain
