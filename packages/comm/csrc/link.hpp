// The way to one peer: frames go out in order of their collective, and come in.

#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "frame.hpp"

namespace drivetrain {

class Collective;

constexpr std::int32_t any_channel = -1;

// A segment on its way to a peer.
struct Outgoing {
  Collective* collective;
  std::uint32_t channel;
  std::uint32_t step;
  std::uint64_t segment;
};

// What a link tells its group. A call may fail the group, after which the link is shut.
class LinkOwner {
 public:
  virtual ~LinkOwner() = default;

  // Where the payload of a frame goes at once, if it may: then `landed` follows.
  virtual bool land(std::int32_t peer, const Frame& frame, std::vector<iovec>& to) = 0;
  virtual void landed(std::int32_t peer, const Frame& frame) = 0;
  virtual void deliver(std::int32_t peer, const Frame& frame, const char* payload) = 0;
  virtual void sent(std::int32_t peer, const Outgoing& item) = 0;
  // Whether a segment may leave for a peer that may not have begun its collective.
  virtual bool may_send(std::int32_t peer, const Outgoing& item) = 0;
  // The peer has begun all collectives up to this one.
  virtual void begun(std::int32_t peer, std::uint64_t sequence) = 0;
  // On this channel nothing more comes; on any_channel, nothing from this peer.
  virtual void lost(std::int32_t peer, std::int32_t channel,
                    const std::string& why) = 0;
};

class Link {
 public:
  Link(LinkOwner& owner, std::int32_t peer) : owner_(owner), peer_(peer) {}
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Queues a segment: before those of later collectives, never into a frame that has
  // begun to leave.
  void push(const Outgoing& item);

  // Tells the peer, with the next flush, that a collective and all before it have
  // begun.
  void announce(std::uint64_t sequence);

  // Sends what can be sent without waiting.
  virtual void flush() = 0;

  // Tells the peer why this rank gives up, if that is possible without waiting, and
  // closes. Nothing comes in or goes out any more.
  virtual void close(const std::string& reason) = 0;

 protected:
  LinkOwner& owner_;
  const std::int32_t peer_;
  // The announcement that is due.
  Frame announcement() const;

  std::deque<Outgoing> queue_;
  bool is_front_begun_ = false;
  std::uint64_t announced_ = 0;
  bool must_announce_ = false;

 private:
  friend class Loop;
  bool is_dirty_ = false;
};

}  // namespace drivetrain
