// Logical time on streams: what a stream has yet to do, and which stream waits for
// which.

#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "driver/driver.hpp"

namespace drivetrain {

class StreamClock;

// A point in a stream: all that was given to it before some moment.
struct Ticket {
  StreamClock* clock = nullptr;
  std::uint64_t time = 0;
};

// One stream. Its time moves with every block that is freed on it. No event is recorded
// until somebody asks for one; an event that is recorded later than a ticket was drawn
// covers that ticket too.
class StreamClock {
 public:
  StreamClock(Driver& driver, Stream stream) : driver_(driver), stream_(stream) {}
  ~StreamClock();
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;

  Stream stream() const { return stream_; }
  std::uint64_t now() const { return now_; }
  Ticket ticket() { return {this, now_}; }

  // Whether it can give no events, and wait for none from outside: its work is being
  // captured into a graph, or it was destroyed and is not known to be done.
  bool capturing();

  // Whether it was found to be destroyed; the driver is asked about it no more.
  bool gone() const { return gone_; }
  // All that was given to it is done.
  void finish();
  // Somebody uses a stream of this name, which lives.
  void revive() { gone_ = false; }

  // Time passes: something was freed. Returns the new time.
  std::uint64_t advance() { return ++now_; }

  // Whether the stream is known to have passed a time. Asks the driver, never waits.
  bool passed(std::uint64_t time);

  // The last time that the stream is known to have passed; without a question to the
  // driver, or with one, which leaves an event behind, so that who asks again learns
  // more.
  std::uint64_t known() const { return passed_; }
  std::uint64_t poll();

  // A ticket for all that was given to the stream until now, with its event.
  Ticket mark();
  // Leaves an event behind what was freed last, so that who takes it waits for no later
  // work. Does nothing for a stream that can give none.
  void mark_free();

  // From now on this stream's work comes after `ticket`. Free of cost for a ticket of
  // its own, and for one that it has waited for before. Returns whether an event was
  // used.
  bool follow(Ticket ticket);

  // The host waits until the stream has passed a time.
  void synchronize(std::uint64_t time);

 private:
  struct Mark {
    std::uint64_t time;
    Event event;
  };

  // The first event at or after a time; recorded if there is none.
  Mark mark_after(std::uint64_t time);
  void drop_oldest();

  Driver& driver_;
  Stream stream_;
  std::uint64_t now_ = 1;
  std::uint64_t passed_ = 0;
  bool gone_ = false;
  std::deque<Mark> marks_;
  // How far this stream is behind others already.
  std::unordered_map<StreamClock*, std::uint64_t> followed_;
};

}  // namespace drivetrain
