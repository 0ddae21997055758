#include "tcp_link.hpp"

#include <limits.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "collective.hpp"

namespace drivetrain {
namespace {

constexpr std::size_t most_payload = std::size_t{1} << 30;
// A link gives way to others after as much.
constexpr std::size_t turn_bytes = std::size_t{4} << 20;

// Drops the first bytes of what is left.
void advance(std::vector<iovec>& pieces, std::size_t& at, std::size_t bytes) {
  while (bytes > 0) {
    iovec& piece = pieces[at];
    const std::size_t part = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<char*>(piece.iov_base) + part;
    piece.iov_len -= part;
    bytes -= part;
    if (piece.iov_len == 0) ++at;
  }
}

}  // namespace

TcpLink::TcpLink(LinkOwner& owner, std::int32_t peer, std::int32_t channel, Loop& loop)
    : Link(owner, peer), channel_(channel), loop_(loop) {}

TcpLink::~TcpLink() {
  drop();
  loop_.forget(*this);
}

void TcpLink::open(int fd) {
  fd_ = fd;
  state_ = State::open;
  loop_.poller().add(fd_, EPOLLIN, *this);
}

void TcpLink::dial(const std::string& host, std::uint16_t port, const Hello& hello,
                   int buffer_bytes) {
  std::string error;
  fd_ = connect_tcp(host, port, buffer_bytes, error);
  if (fd_ < 0) return lose(error);
  hello_ = hello;
  state_ = State::connecting;
  loop_.poller().add(fd_, EPOLLOUT, *this);
}

void TcpLink::connected() {
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return lose(std::strerror(error));
  // The first bytes of a connection: there is room for them.
  if (send(fd_, &hello_, sizeof hello_, MSG_NOSIGNAL) != sizeof hello_)
    return lose(std::strerror(errno));
  state_ = State::open;
  loop_.poller().change(fd_, EPOLLIN, *this);
  flush();
}

void TcpLink::drop() {
  state_ = State::closed;
  queue_.clear();
  is_front_begun_ = is_announcing_ = wants_write_ = false;
  if (fd_ < 0) return;
  loop_.poller().remove(fd_, *this);
  // A child that was forked may hold the connection too.
  shutdown(fd_, SHUT_RDWR);
  ::close(fd_);
  fd_ = -1;
}

void TcpLink::close(const std::string& reason) {
  if (!is_open()) return drop();
  if (!is_front_begun_ && !is_announcing_) {
    Frame frame{};
    frame.magic = frame_magic;
    frame.kind = FrameKind::abort;
    frame.size = static_cast<std::uint32_t>(reason.size());
    iovec parts[2] = {{&frame, sizeof frame},
                      {const_cast<char*>(reason.data()), reason.size()}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    // A hint only: without it the peer sees the connection end.
    [[maybe_unused]] const ssize_t sent =
        sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  queue_.clear();
  is_front_begun_ = false;
  // Closing now, with data unread, would reset the connection and take the reason away.
  shutdown(fd_, SHUT_WR);
  state_ = State::draining;
  loop_.poller().change(fd_, EPOLLIN, *this);
}

void TcpLink::drain() {
  char waste[4096];
  ssize_t got;
  while ((got = recv(fd_, waste, sizeof waste, MSG_DONTWAIT)) > 0) {
  }
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) drop();
}

void TcpLink::lose(const std::string& why, bool is_all) {
  drop();
  owner_.lost(peer_, is_all ? any_channel : channel_, why);
}

void TcpLink::flush() {
  while (is_open() && !wants_write_ && begin_front()) send_front();
}

// Returns whether there is something to send.
bool TcpLink::begin_front() {
  if (is_front_begun_ || is_announcing_) return true;
  is_announcing_ = std::exchange(must_announce_, false);
  is_front_begun_ =
      !is_announcing_ && !queue_.empty() && owner_.may_send(peer_, queue_.front());
  if (!is_announcing_ && !is_front_begun_) return false;
  out_frame_ = is_announcing_ ? announcement()
                              : queue_.front().collective->frame_of(queue_.front());
  out_.assign(1, {&out_frame_, sizeof out_frame_});
  if (is_front_begun_) queue_.front().collective->payload_of(queue_.front(), out_);
  out_at_ = 0;
  return true;
}

void TcpLink::send_front() {
  msghdr message{};
  message.msg_iov = out_.data() + out_at_;
  message.msg_iovlen = std::min<std::size_t>(out_.size() - out_at_, IOV_MAX);
  const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (errno == EINTR) return;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      lose(std::strerror(errno));
      return;
    }
    wants_write_ = true;
    loop_.poller().change(fd_, EPOLLIN | EPOLLOUT, *this);
    return;
  }
  advance(out_, out_at_, static_cast<std::size_t>(sent));
  if (out_at_ < out_.size()) return;
  if (std::exchange(is_announcing_, false)) return;
  is_front_begun_ = false;
  const Outgoing item = queue_.front();
  queue_.pop_front();
  owner_.sent(peer_, item);
}

void TcpLink::on_event(std::uint32_t events) {
  if (state_ == State::draining) return drain();
  if (state_ == State::connecting) return connected();
  if (events & EPOLLOUT) {
    wants_write_ = false;
    loop_.poller().change(fd_, EPOLLIN, *this);
    flush();
  }
  if (is_open() && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) receive();
}

// Returns whether there may be more; the connection may be gone after it.
bool TcpLink::receive_some(iovec* to, std::size_t count, std::size_t& got) {
  msghdr message{};
  message.msg_iov = to;
  message.msg_iovlen = std::min<std::size_t>(count, IOV_MAX);
  const ssize_t received = recvmsg(fd_, &message, MSG_DONTWAIT);
  if (received > 0) {
    got = static_cast<std::size_t>(received);
    return true;
  }
  if (received == 0)
    lose("it closed the connection");
  else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
    lose(std::strerror(errno));
  return false;
}

void TcpLink::receive() {
  std::size_t turn = 0;
  while (is_open() && turn < turn_bytes) {
    std::size_t got = 0;
    if (in_header_ < sizeof in_frame_) {
      iovec rest{reinterpret_cast<char*>(&in_frame_) + in_header_,
                 sizeof in_frame_ - in_header_};
      if (!receive_some(&rest, 1, got)) return;
      in_header_ += got;
      if (in_header_ == sizeof in_frame_) begin_payload();
    } else {
      if (!receive_some(in_.data() + in_at_, in_.size() - in_at_, got)) return;
      advance(in_, in_at_, got);
      if (in_at_ == in_.size()) end_payload();
    }
    turn += got;
  }
}

void TcpLink::begin_payload() {
  if (in_frame_.magic == frame_magic && in_frame_.kind == FrameKind::begun) {
    in_header_ = 0;
    return owner_.begun(peer_, in_frame_.sequence);
  }
  if (in_frame_.magic != frame_magic || in_frame_.size > most_payload ||
      in_frame_.size == 0)
    return lose("what it sends is no frame of this version");
  in_.clear();
  in_at_ = 0;
  is_direct_ = in_frame_.kind == FrameKind::data && owner_.land(peer_, in_frame_, in_);
  if (is_direct_ || !is_open()) return;
  if (buffer_.size() < in_frame_.size) buffer_.resize(in_frame_.size);
  in_.assign(1, {buffer_.data(), in_frame_.size});
}

void TcpLink::end_payload() {
  in_header_ = 0;
  if (is_direct_)
    owner_.landed(peer_, in_frame_);
  else if (in_frame_.kind == FrameKind::abort)
    lose(std::string(buffer_.data(), in_frame_.size), true);
  else
    owner_.deliver(peer_, in_frame_, buffer_.data());
}

}  // namespace drivetrain
