#include "stream_clock.hpp"

#include "error.hpp"

namespace drivetrain {

StreamClock::~StreamClock() {
  for (const Mark& mark : marks_) {
    driver_.forget(mark.event);
  }
}

bool StreamClock::capturing() {
  if (!gone_) {
    try {
      return driver_.capturing(stream_);
    } catch (const StreamGone&) {
      gone_ = true;
      // What it was given since it was last asked is not known.
      advance();
    }
  }
  return !passed(now_);
}

void StreamClock::finish() {
  while (!marks_.empty()) {
    drop_oldest();
  }
  passed_ = now_;
}

bool StreamClock::passed(std::uint64_t time) {
  while (passed_ < time && !marks_.empty() && driver_.done(marks_.front().event)) {
    drop_oldest();
  }
  return passed_ >= time;
}

std::uint64_t StreamClock::poll() {
  passed(now_);
  if (marks_.empty() && passed_ < now_ && !gone_) {
    mark_after(now_);
  }
  return passed_;
}

Ticket StreamClock::mark() {
  if (gone_) {
    return ticket();
  }
  advance();
  mark_after(now_);
  return ticket();
}

void StreamClock::mark_free() {
  if (!passed(now_) && !capturing()) {
    marks_.push_back({now_, driver_.record(stream_)});
  }
}

bool StreamClock::follow(Ticket ticket) {
  if (ticket.clock == nullptr || ticket.clock == this) {
    return false;
  }
  std::uint64_t& until = followed_[ticket.clock];
  if (until >= ticket.time || ticket.clock->passed(ticket.time)) {
    return false;
  }
  const Mark mark = ticket.clock->mark_after(ticket.time);
  driver_.wait(stream_, mark.event);
  until = mark.time;
  return true;
}

void StreamClock::synchronize(std::uint64_t time) {
  if (passed(time)) {
    return;
  }
  const Mark mark = mark_after(time);
  driver_.synchronize(mark.event);
  // What was recorded before it on the stream has passed too, and need not be asked.
  while (passed_ < mark.time) {
    drop_oldest();
  }
}

StreamClock::Mark StreamClock::mark_after(std::uint64_t time) {
  for (const Mark& mark : marks_) {
    if (mark.time >= time) {
      return mark;
    }
  }
  marks_.push_back({now_, driver_.record(stream_)});
  return marks_.back();
}

void StreamClock::drop_oldest() {
  passed_ = marks_.front().time;
  driver_.forget(marks_.front().event);
  marks_.pop_front();
}

}  // namespace drivetrain
