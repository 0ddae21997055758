#include "poller.hpp"

#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace drivetrain {
namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

Poller::Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_ < 0) fail("epoll_create1");
}

Poller::~Poller() { ::close(epoll_); }

void Poller::add(int fd, std::uint32_t events, EventHandler& handler) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &handler;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl add");
}

void Poller::change(int fd, std::uint32_t events, EventHandler& handler) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &handler;
  if (epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event) != 0) fail("epoll_ctl change");
}

void Poller::remove(int fd, const EventHandler& handler) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  for (int i = 0; i < num_events_; ++i)
    if (buffer_[i].data.ptr == &handler) buffer_[i].data.ptr = nullptr;
}

void Poller::wait(int timeout_ms) {
  num_events_ = epoll_wait(epoll_, buffer_, 64, timeout_ms);
  if (num_events_ < 0) {
    if (errno != EINTR) fail("epoll_wait");
    num_events_ = 0;
  }
  for (int i = 0; i < num_events_; ++i)
    if (auto* handler = static_cast<EventHandler*>(buffer_[i].data.ptr))
      handler->on_event(buffer_[i].events);
  num_events_ = 0;
}

}  // namespace drivetrain
