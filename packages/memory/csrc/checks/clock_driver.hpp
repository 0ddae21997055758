// A device whose streams are vector clocks: who may touch memory after whom is known,
// not guessed from timing.
//
// Work on a stream comes after all earlier work of that stream, after the events that
// the stream waited for, and after what the host had seen done when it submitted the
// work (Lamport, 1978; Fidge, 1988). A use of memory that does not come after every use
// of it by an earlier tenant is a race.

#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "../driver/driver.hpp"
#include "../error.hpp"

namespace drivetrain {

constexpr unsigned kClockStreams = 4;

class ClockDriver : public Driver {
 public:
  // Args:
  //   chunks: How many the device has.
  //   chunk: Bytes of each.
  //   seed: Of when events turn out to be done.
  ClockDriver(std::uint64_t chunks, Bytes chunk, std::uint64_t seed)
      : total_(chunks * chunk), chunk_(chunk), random_(seed), units_(chunks * units()) {
    for (std::uint64_t i = chunks; i > 0; --i) {
      unused_.push_back(i);
    }
  }

  Bytes chunk_bytes() const override { return chunk_; }
  Bytes total_bytes() override { return total_; }
  Bytes free_bytes() override { return unused_.size() * chunk_; }

  Address reserve(Bytes bytes) override {
    const Address at = next_address_;
    next_address_ += bytes;
    pages_.resize((next_address_ - kFirst) / chunk_);
    return at;
  }
  // The last range alone: others go on elsewhere.
  bool extend(Address end, Bytes bytes) override {
    return end == next_address_ && reserve(bytes) == end;
  }
  void unreserve(Address, Bytes) override {}

  bool create(Handle* chunk) override {
    if (unused_.empty()) {
      return false;
    }
    *chunk = unused_.back();
    unused_.pop_back();
    return true;
  }
  void destroy(Handle chunk) override { unused_.push_back(chunk); }

  void map(Address at, const Handle* chunks, std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      Handle& page = pages_[page_of(at) + i];
      complain_if(page != 0, "a page is mapped over another mapping");
      page = chunks[i];
    }
  }

  void unmap(Address at, std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t page = page_of(at) + i;
      complain_if(pages_[page] == 0, "a page is unmapped that maps nothing");
      // What was submitted through this address must be done.
      for (unsigned s = 0; s < kClockStreams; ++s) {
        complain_if(touched_[page][s] > host_[s],
                    "a page is unmapped while it is used");
      }
      pages_[page] = 0;
    }
  }

  Event record(Stream stream) override {
    events_[next_event_] = {stream, tick(stream)};
    return next_event_++;
  }

  bool done(Event event) override {
    const Point& point = events_.at(event);
    std::uint64_t& until = done_[point.stream];
    if (point.clock[point.stream] > until) {
      if (random_() % 3 != 0) {
        return false;
      }
      until = point.clock[point.stream];
    }
    join(host_, point.clock);
    return true;
  }

  void wait(Stream stream, Event event) override {
    join(clocks_[stream], events_.at(event).clock);
  }

  void synchronize(Event event) override {
    const Point& point = events_.at(event);
    done_[point.stream] = std::max(done_[point.stream], point.clock[point.stream]);
    join(host_, point.clock);
  }

  void forget(Event event) override { events_.erase(event); }
  bool capturing(Stream) override { return false; }
  int share(Handle) override { throw DriverError("this device shares nothing"); }
  bool synchronize_all() override {
    for (const Clock& clock : clocks_) {
      join(host_, clock);
    }
    done_ = host_;
    return true;
  }
  char* take_host(Bytes bytes) override { return new char[bytes]; }
  void give_host(char* memory) override { delete[] memory; }
  void read(char*, Address, Bytes) override {}
  void write(Address, const char*, Bytes) override {}

  // A tenant's work on a stream touches memory. What it touches is kept in units.
  void use(Stream stream, Address at, Bytes size, std::uint64_t tenant) {
    const Clock clock = tick(stream);
    for (Address unit = at; unit < at + size; unit += kUnit) {
      const std::size_t page = page_of(unit);
      complain_if(pages_[page] == 0, "memory is used that is not mapped");
      if (pages_[page] == 0) {
        return;
      }
      touched_[page][stream] = clock[stream];
      Uses& uses = units_[(pages_[page] - 1) * units() + unit % chunk_ / kUnit];
      for (unsigned s = 0; s < kClockStreams; ++s) {
        complain_if(uses.tenant[s] != tenant && uses.time[s] > clock[s],
                    "a tenant comes before the one before it is done");
      }
      uses.time[stream] = clock[stream];
      uses.tenant[stream] = tenant;
    }
  }

  std::uint64_t complaints() const { return complaints_; }
  const std::string& first_complaint() const { return first_complaint_; }

 private:
  using Clock = std::array<std::uint64_t, kClockStreams>;

  struct Point {
    Stream stream;
    Clock clock;
  };

  // The last use of a unit on each stream, and whose it was.
  struct Uses {
    Clock time{};
    Clock tenant{};
  };

  static constexpr Address kFirst = Address{1} << 46;

  std::size_t units() const { return chunk_ / kUnit; }
  std::size_t page_of(Address at) {
    const std::size_t page = (at - kFirst) / chunk_;
    if (touched_.size() <= page) {
      touched_.resize(page + 1);
    }
    return page;
  }

  static void join(Clock& clock, const Clock& other) {
    for (unsigned s = 0; s < kClockStreams; ++s) {
      clock[s] = std::max(clock[s], other[s]);
    }
  }

  Clock tick(Stream stream) {
    join(clocks_[stream], host_);
    ++clocks_[stream][stream];
    return clocks_[stream];
  }

  void complain_if(bool wrong, const char* what) {
    if (wrong && complaints_++ == 0) {
      first_complaint_ = what;
    }
  }

  Bytes total_;
  Bytes chunk_;
  std::mt19937_64 random_;
  Address next_address_ = kFirst;
  std::vector<Handle> unused_;
  std::vector<Handle> pages_;
  std::vector<Clock> touched_;
  std::vector<Uses> units_;
  std::array<Clock, kClockStreams> clocks_{};
  Clock host_{};
  Clock done_{};
  std::unordered_map<Event, Point> events_;
  Event next_event_ = 1;
  std::uint64_t complaints_ = 0;
  std::string first_complaint_;
};

}  // namespace drivetrain
