#include "group.hpp"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "local_link.hpp"
#include "tcp_link.hpp"

namespace drivetrain {
namespace {

// What a rank that is late takes from all others together, and at least from each.
constexpr std::uint64_t most_early_bytes = std::uint64_t{16} << 20;
constexpr std::uint64_t least_early_bytes = std::uint64_t{1} << 20;

}  // namespace

Group::Group(Loop& loop, const Token& token, std::int32_t rank, std::int32_t num_ranks,
             int buffer_bytes)
    : loop_(loop),
      token_(token),
      rank_(rank),
      buffer_bytes_(buffer_bytes),
      most_ahead_(std::max(most_early_bytes / static_cast<std::uint64_t>(num_ranks),
                           least_early_bytes)),
      peers_(static_cast<std::size_t>(num_ranks)) {}

// Runs f; what it throws fails the group.
template <class F>
bool Group::guarded(F f) {
  try {
    f();
    return true;
  } catch (const std::exception& error) {
    fail(say(error.what()));
    return false;
  }
}

Group::~Group() {
  for (auto& entry : active_)
    entry.second->request().ticket->finish(say("the process group was destroyed"));
}

void Group::set_address(std::int32_t peer, Address address) {
  if (!is_peer(peer)) return;
  Peer& at = peers_[static_cast<std::size_t>(peer)];
  at.address = std::move(address);
  at.is_known = true;
}

void Group::submit(Request request) {
  const std::shared_ptr<Ticket> ticket = request.ticket;
  if (broken_.empty())
    for (const Lane& lane : request.program->lanes) {
      const Peer& peer = peers_[static_cast<std::size_t>(lane.peer)];
      if (!peer.gone.empty())
        fail(say("rank " + std::to_string(lane.peer) + " is lost: " + peer.gone));
      else if (!peer.is_known)
        fail(say("the address of rank " + std::to_string(lane.peer) + " is unknown"));
    }
  if (!broken_.empty()) return ticket->finish(broken_);
  const std::uint64_t sequence = next_sequence_++;
  std::unique_ptr<Collective> made;
  const bool is_made = guarded([&] {
    made = std::make_unique<Collective>(std::move(request), sequence, *this);
  });
  if (!is_made) return ticket->finish(broken_);
  Collective& collective = *made;
  active_.emplace(sequence, std::move(made));
  // Ways to all its peers, so that those who have nothing to send learn of a death too.
  const Request& now = collective.request();
  for (const Lane& lane : now.program->lanes)
    for (std::uint32_t channel = 0; channel < now.num_channels; ++channel)
      if (broken_.empty()) link_to(lane.peer, channel);
  if (!broken_.empty()) return;
  say_begun(collective);
  if (!guarded([&] { collective.start(); })) return;
  const auto found = early_.find(sequence);
  std::deque<Early> early;
  if (found != early_.end()) {
    early = std::move(found->second);
    early_.erase(found);
  }
  for (const Early& one : early) {
    deliver(one.peer, one.frame, one.payload.data());
    if (active_.count(sequence) == 0) return;
  }
  end_if_done(collective);
}

std::unique_ptr<Link>& Group::place_of(std::int32_t peer, std::uint32_t channel) {
  auto& links = peers_[static_cast<std::size_t>(peer)].links;
  if (links.size() <= channel) links.resize(channel + 1);
  return links[channel];
}

// A link of its kind that nobody has connected yet; null if there is another.
template <class L, class... Arguments>
L* Group::free_link(std::int32_t peer, std::uint32_t channel,
                    Arguments&&... arguments) {
  std::unique_ptr<Link>& place = place_of(peer, channel);
  if (!place) place = std::make_unique<L>(*this, peer, arguments...);
  L* link = dynamic_cast<L*>(place.get());
  return link != nullptr && link->is_waiting() ? link : nullptr;
}

// The lower rank connects, the higher one is connected to.
Link& Group::link_to(std::int32_t peer, std::uint32_t channel) {
  Peer& at = peers_[static_cast<std::size_t>(peer)];
  const bool is_local = !at.address.local_name.empty();
  if (is_local) channel = 0;
  std::unique_ptr<Link>& place = place_of(peer, channel);
  if (place) return *place;
  if (is_local) {
    auto link = std::make_unique<LocalLink>(*this, peer, loop_);
    LocalLink& made = *link;
    place = std::move(link);
    if (rank_ < peer) made.dial(at.address.local_name, hello(channel));
    return made;
  }
  auto link = std::make_unique<TcpLink>(*this, peer, channel, loop_);
  TcpLink& made = *link;
  place = std::move(link);
  if (rank_ < peer)
    made.dial(at.address.host, at.address.port, hello(channel), buffer_bytes_);
  return made;
}

void Group::accept_tcp(const Hello& hello, int fd) {
  TcpLink* link = nullptr;
  if (is_peer(hello.rank) && hello.rank < rank_ && hello.channel >= 0 &&
      hello.channel <= UINT8_MAX && broken_.empty())
    link = free_link<TcpLink>(hello.rank, static_cast<std::uint32_t>(hello.channel),
                              hello.channel, loop_);
  if (link == nullptr) {
    ::close(fd);
    return;
  }
  set_buffers(fd, buffer_bytes_);
  link->open(fd);
  loop_.mark(*link);
}

void Group::accept_local(const Hello& hello, int fd, int memory, int bell) {
  LocalLink* link = nullptr;
  if (is_peer(hello.rank) && hello.rank < rank_ && broken_.empty())
    link = free_link<LocalLink>(hello.rank, 0, loop_);
  if (link == nullptr) {
    for (const int one : {fd, memory, bell}) ::close(one);
    return;
  }
  link->open(fd, memory, bell);
}

Hello Group::hello(std::uint32_t channel) const {
  return {hello_magic, protocol_version, token_, rank_,
          static_cast<std::int32_t>(channel)};
}

bool Group::is_peer(std::int32_t rank) const {
  return rank >= 0 && rank != rank_ && rank < static_cast<std::int32_t>(peers_.size());
}

void Group::push(std::int32_t peer, const Outgoing& item) {
  Link& link = link_to(peer, item.channel);
  link.push(item);
  loop_.mark(link);
}

// The collective that a frame belongs to; null if it has not begun here, or if the
// frame has made the group fail.
Collective* Group::find(std::int32_t peer, const Frame& frame) {
  if (frame.sequence >= next_sequence_) return nullptr;
  const auto found = active_.find(frame.sequence);
  const std::string wrong = found == active_.end()
                                ? "rank " + std::to_string(peer) +
                                      " sends more than collective " +
                                      std::to_string(frame.sequence) + " takes"
                                : found->second->mismatch(peer, frame);
  if (!wrong.empty()) {
    fail(say(wrong));
    return nullptr;
  }
  return found->second.get();
}

bool Group::land(std::int32_t peer, const Frame& frame, std::vector<iovec>& to) {
  Collective* collective = find(peer, frame);
  return collective != nullptr && collective->land(peer, frame, to);
}

void Group::landed(std::int32_t peer, const Frame& frame) {
  const auto found = active_.find(frame.sequence);
  if (found == active_.end()) return;
  Collective& collective = *found->second;
  if (guarded([&] { collective.landed(peer, frame); })) end_if_done(collective);
}

void Group::deliver(std::int32_t peer, const Frame& frame, const char* payload) {
  if (!broken_.empty()) return;
  if (frame.sequence >= next_sequence_) {
    early_[frame.sequence].push_back({peer, frame, {payload, payload + frame.size}});
    return;
  }
  Collective* collective = find(peer, frame);
  if (collective == nullptr) return;
  if (guarded([&] { collective->deliver(peer, frame, payload); }))
    end_if_done(*collective);
}

// A rank that is late stores what comes for collectives that it has not begun. So much
// may come unasked; what is more waits for it to say that it has begun. It says so once
// it has begun to take half of that since it last did: whoever waits is told.
void Group::say_begun(const Collective& collective) {
  for (const Lane& lane : collective.request().program->lanes) {
    if (lane.sends) continue;
    Peer& peer = peers_[static_cast<std::size_t>(lane.peer)];
    peer.unsaid_bytes += collective.num_bytes(lane);
    if (peer.unsaid_bytes < most_ahead_ / 2) continue;
    peer.unsaid_bytes = 0;
    Link& link = link_to(lane.peer, 0);
    link.announce(collective.sequence());
    loop_.mark(link);
  }
}

bool Group::may_send(std::int32_t peer, const Outgoing& item) {
  const Peer& to = peers_[static_cast<std::size_t>(peer)];
  return item.collective->sequence() < to.num_begun || to.ahead_bytes < most_ahead_;
}

void Group::begun(std::int32_t peer, std::uint64_t sequence) {
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  from.num_begun = std::max(from.num_begun, sequence + 1);
  while (!from.ahead.empty() && from.ahead.begin()->first <= sequence) {
    from.ahead_bytes -= from.ahead.begin()->second;
    from.ahead.erase(from.ahead.begin());
  }
  for (auto& link : from.links)
    if (link) loop_.mark(*link);
}

void Group::sent(std::int32_t peer, const Outgoing& item) {
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  const std::uint64_t sequence = item.collective->sequence();
  if (sequence >= to.num_begun) {
    const std::uint64_t bytes = item.collective->num_bytes(item);
    to.ahead[sequence] += bytes;
    to.ahead_bytes += bytes;
  }
  if (guarded([&] { item.collective->sent(item); })) end_if_done(*item.collective);
}

void Group::end_if_done(Collective& collective) {
  if (!collective.is_done()) return;
  const std::shared_ptr<Ticket> ticket = collective.request().ticket;
  active_.erase(collective.sequence());
  ticket->finish("");
}

void Group::lost(std::int32_t peer, std::int32_t channel, const std::string& why) {
  Peer& at = peers_[static_cast<std::size_t>(peer)];
  if (at.gone.empty()) at.gone = why;
  for (const auto& entry : active_)
    if (entry.second->needs(peer, channel))
      return fail(say(describe(*entry.second) + " cannot end, rank " +
                      std::to_string(peer) + " is lost: " + why));
}

std::string Group::describe(const Collective& collective) const {
  return "collective " + std::to_string(collective.sequence()) + " (" +
         std::to_string(collective.request().vector.size()) + " bytes)";
}

std::string Group::say(const std::string& what) const {
  return "rank " + std::to_string(rank_) + ": " + what;
}

void Group::fail(const std::string& why) {
  if (!broken_.empty()) return;
  broken_ = why;
  for (Peer& peer : peers_)
    for (auto& link : peer.links)
      if (link) link->close(why);
  early_.clear();
  auto ended = std::move(active_);
  active_.clear();
  for (auto& entry : ended) entry.second->request().ticket->finish(why);
  // What called this may still stand in one of them.
  for (auto& entry : ended) ended_.push_back(std::move(entry.second));
}

Group::Time Group::check_deadlines(Time now) {
  ended_.clear();
  Time next = Time::max();
  for (const auto& entry : active_) {
    const Collective& collective = *entry.second;
    next = std::min(next, collective.request().deadline);
    if (collective.request().deadline > now) continue;
    std::string names;
    for (const std::int32_t peer : collective.awaited())
      names += (names.empty() ? "" : ", ") + std::to_string(peer);
    fail(say(describe(collective) + " timed out: " +
             (names.empty() ? "peers do not take what is sent to them"
                            : "nothing more comes from rank " + names)));
    return Time::max();
  }
  return next;
}

}  // namespace drivetrain
