// The ranks of one process group, as one of them sees it.

#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "collective.hpp"
#include "hello.hpp"
#include "link.hpp"
#include "loop.hpp"

namespace drivetrain {

// Where a peer can be found.
struct Address {
  std::string host;  // numeric
  std::uint16_t port = 0;
  std::string local_name;  // empty unless the peer is on this host
};

// Used on the loop's thread only.
class Group final : public LinkOwner, public Outbox {
 public:
  Group(Loop& loop, const Token& token, std::int32_t rank, std::int32_t num_ranks,
        int buffer_bytes);
  ~Group() override;

  void set_address(std::int32_t peer, Address address);

  // Starts a collective; its ticket is finished when it ends, in whatever way. The
  // addresses of all peers in its program must be known.
  void submit(Request request);

  // A peer has connected; the group owns the descriptors from now on.
  void accept_tcp(const Hello& hello, int fd);
  void accept_local(const Hello& hello, int fd, int memory, int bell);

  // Ends all collectives with this error, and those to come; tells the peers.
  void fail(const std::string& why);

  using Time = std::chrono::steady_clock::time_point;
  // Fails if a collective has not ended in time. Returns when to look again. Called at
  // the top of the loop.
  Time check_deadlines(Time now);

  bool land(std::int32_t peer, const Frame& frame, std::vector<iovec>& to) override;
  void landed(std::int32_t peer, const Frame& frame) override;
  void deliver(std::int32_t peer, const Frame& frame, const char* payload) override;
  void sent(std::int32_t peer, const Outgoing& item) override;
  bool may_send(std::int32_t peer, const Outgoing& item) override;
  void begun(std::int32_t peer, std::uint64_t sequence) override;
  void lost(std::int32_t peer, std::int32_t channel, const std::string& why) override;
  void push(std::int32_t peer, const Outgoing& item) override;

 private:
  struct Peer {
    Address address;
    bool is_known = false;
    std::string gone;                          // why nothing can be sent to it any more
    std::vector<std::unique_ptr<Link>> links;  // by channel; one within a host
    // Collectives that the peer has said to have begun, and what was sent to it in
    // later ones.
    std::uint64_t num_begun = 0;
    std::map<std::uint64_t, std::uint64_t> ahead;
    std::uint64_t ahead_bytes = 0;
    // What the peer sends in collectives of which it was not told that they have begun.
    std::uint64_t unsaid_bytes = 0;
  };
  struct Early {
    std::int32_t peer;
    Frame frame;
    std::vector<char> payload;
  };

  std::unique_ptr<Link>& place_of(std::int32_t peer, std::uint32_t channel);
  template <class L, class... Arguments>
  L* free_link(std::int32_t peer, std::uint32_t channel, Arguments&&... arguments);
  template <class F>
  bool guarded(F f);
  Link& link_to(std::int32_t peer, std::uint32_t channel);
  Hello hello(std::uint32_t channel) const;
  bool is_peer(std::int32_t rank) const;
  Collective* find(std::int32_t peer, const Frame& frame);
  void end_if_done(Collective& collective);
  void say_begun(const Collective& collective);
  std::string describe(const Collective& collective) const;
  std::string say(const std::string& what) const;

  Loop& loop_;
  const Token token_;
  const std::int32_t rank_;
  const int buffer_bytes_;
  const std::uint64_t most_ahead_;
  std::vector<Peer> peers_;
  std::map<std::uint64_t, std::unique_ptr<Collective>> active_;
  std::map<std::uint64_t, std::deque<Early>> early_;
  std::uint64_t next_sequence_ = 0;
  std::string broken_;
  std::vector<std::unique_ptr<Collective>> ended_;  // until the stack is unwound
};

}  // namespace drivetrain
