#include "loop.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace drivetrain {

Loop::Loop() : bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (bell_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  poller_.add(bell_, EPOLLIN, *this);
}

Loop::~Loop() { ::close(bell_); }

void Loop::ring() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(bell_, &one, sizeof one);
}

void Loop::on_event(std::uint32_t) {
  std::uint64_t count;
  [[maybe_unused]] const ssize_t got = read(bell_, &count, sizeof count);
}

void Loop::remove(const Polled& polled) {
  polled_.erase(std::remove(polled_.begin(), polled_.end(), &polled), polled_.end());
}

void Loop::mark(Link& link) {
  if (link.is_dirty_) return;
  link.is_dirty_ = true;
  dirty_.push_back(&link);
}

void Loop::forget(const Link& link) {
  dirty_.erase(std::remove(dirty_.begin(), dirty_.end(), &link), dirty_.end());
}

void Loop::flush() {
  while (!dirty_.empty()) {
    Link* link = dirty_.back();
    dirty_.pop_back();
    link->is_dirty_ = false;
    link->flush();
  }
}

void Loop::turn(int timeout_ms) {
  flush();
  // By index: a poll may open the way to another peer.
  for (std::size_t i = 0; i < polled_.size(); ++i) polled_[i]->poll();
  flush();
  for (Polled* polled : polled_)
    if (!polled->prepare_sleep()) timeout_ms = 0;
  poller_.wait(timeout_ms);
}

}  // namespace drivetrain
