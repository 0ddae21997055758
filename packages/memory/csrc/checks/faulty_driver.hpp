// A device that keeps books of all it was asked for, refuses one call when it is told
// to, and has streams that are captured.

#pragma once

#include <map>
#include <random>
#include <set>
#include <string>

#include "../driver/null_driver.hpp"
#include "../error.hpp"

namespace drivetrain {

class FaultyDriver : public NullDriver {
 public:
  FaultyDriver(std::uint64_t chunks, Bytes chunk, std::uint64_t seed)
      : NullDriver(chunks * chunk, chunk), random_(seed) {}

  // The call of this name after `skipped` others of it throws.
  void refuse(std::string call, unsigned skipped) {
    refused_ = std::move(call);
    skipped_ = skipped;
  }
  void capture(Stream stream) { captured_.insert(stream); }
  void end_capture(Stream stream) { captured_.erase(stream); }
  bool is_captured(Stream stream) const { return captured_.count(stream) != 0; }

  // How many chunks there are, and which one a page maps; 0 for none.
  std::size_t num_chunks() const { return chunks_.size(); }
  Handle mapped_at(Address page) const {
    const auto found = pages_.find(page);
    return found == pages_.end() ? 0 : found->second;
  }

  // What was asked for that no device does.
  std::uint64_t complaints() const { return complaints_; }
  const std::string& first_complaint() const { return first_complaint_; }
  void complain_if(bool wrong, const char* what) {
    if (wrong && complaints_++ == 0) {
      first_complaint_ = what;
    }
  }

  bool extend(Address end, Bytes bytes) override {
    try {
      meet("extend");
    } catch (const DriverError&) {
      return false;
    }
    return NullDriver::extend(end, bytes);
  }

  bool create(Handle* chunk) override {
    meet("create");
    const bool there_is = NullDriver::create(chunk);
    if (there_is) {
      chunks_.insert(*chunk);
    }
    return there_is;
  }

  void destroy(Handle chunk) override {
    meet("destroy");
    complain_if(chunks_.erase(chunk) == 0, "a chunk is destroyed that is not there");
    NullDriver::destroy(chunk);
  }

  void map(Address at, const Handle* chunks, std::size_t count) override {
    meet("map");
    for (std::size_t i = 0; i < count; ++i) {
      complain_if(chunks_.count(chunks[i]) == 0, "a chunk is mapped that is not there");
      const bool fresh = pages_.emplace(at + i * chunk_bytes(), chunks[i]).second;
      complain_if(!fresh, "a page is mapped over another mapping");
    }
  }

  void unmap(Address at, std::size_t count) override {
    meet("unmap");
    for (std::size_t i = 0; i < count; ++i) {
      complain_if(pages_.erase(at + i * chunk_bytes()) == 0,
                  "a page is unmapped that maps nothing");
    }
  }

  Event record(Stream stream) override {
    meet("record");
    complain_if(is_captured(stream),
                "an event is recorded while its stream is captured");
    events_[next_event_] = false;
    return next_event_++;
  }

  bool done(Event event) override {
    meet("done");
    bool& is_done = state_of(event);
    is_done = is_done || random_() % 3 == 0;
    return is_done;
  }

  void wait(Stream stream, Event event) override {
    meet("wait");
    complain_if(is_captured(stream), "a captured stream waits for what is outside");
    state_of(event);
  }

  void synchronize(Event event) override {
    meet("synchronize");
    state_of(event) = true;
  }

  void forget(Event event) override {
    complain_if(events_.erase(event) == 0, "an event is forgotten twice");
  }

  void read(char*, Address, Bytes) override { meet("read"); }
  void write(Address, const char*, Bytes) override { meet("write"); }

  bool capturing(Stream stream) override {
    meet("capturing");
    return is_captured(stream);
  }

 private:
  void meet(const char* call) {
    if (refused_ == call && skipped_-- == 0) {
      refused_.clear();
      throw DriverError(std::string("refused: ") + call);
    }
  }

  bool& state_of(Event event) {
    complain_if(events_.count(event) == 0, "an event is used that was forgotten");
    return events_[event];
  }

  std::mt19937_64 random_;
  std::string refused_;
  unsigned skipped_ = 0;
  std::set<Stream> captured_;
  std::set<Handle> chunks_;
  std::map<Address, Handle> pages_;
  std::map<Event, bool> events_;
  Event next_event_ = 1;
  std::uint64_t complaints_ = 0;
  std::string first_complaint_;
};

}  // namespace drivetrain
