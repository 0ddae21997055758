#include "local_link.hpp"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "collective.hpp"

namespace drivetrain {
namespace {

constexpr std::uint64_t side_bytes = sizeof(FrameQueueState) + queue_bytes;
constexpr std::uint64_t shared_bytes = 2 * side_bytes;
// A link gives way to others after as many frames.
constexpr int turn_frames = 16;

}  // namespace

LocalLink::LocalLink(LinkOwner& owner, std::int32_t peer, Loop& loop)
    : Link(owner, peer), loop_(loop) {}

LocalLink::~LocalLink() {
  drop();
  loop_.forget(*this);
}

void LocalLink::dial(const std::string& name, const Hello& hello) {
  std::string error;
  socket_ = connect_local(name, error);
  if (socket_ < 0) return lose(error);
  const int memory = memfd_create("drivetrain-comm", MFD_CLOEXEC);
  const bool is_ready =
      memory >= 0 && ftruncate(memory, shared_bytes) == 0 && map(memory, true) &&
      send_with(socket_, &hello, sizeof hello, {memory, loop_.bell()});
  const int reason = errno;
  if (memory >= 0) ::close(memory);
  if (!is_ready)
    return lose(std::string("cannot share memory with it: ") + std::strerror(reason));
  loop_.poller().add(socket_, EPOLLIN, *this);
}

void LocalLink::open(int socket, int memory, int bell) {
  socket_ = socket;
  const bool is_ready =
      map(memory, false) && send_with(socket_, "!", 1, {loop_.bell()});
  ::close(memory);
  peer_bell_ = bell;
  if (!is_ready) return lose("cannot map the memory that it shares");
  loop_.poller().add(socket_, EPOLLIN, *this);
  start();
}

bool LocalLink::map(int memory, bool is_dialer) {
  void* mapped =
      mmap(nullptr, shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (mapped == MAP_FAILED) return false;
  memory_ = mapped;
  char* sides[2] = {static_cast<char*>(mapped),
                    static_cast<char*>(mapped) + side_bytes};
  const auto ring = [](char* side) {
    return FrameQueue{reinterpret_cast<FrameQueueState*>(side),
                      side + sizeof(FrameQueueState)};
  };
  out_ = ring(sides[is_dialer ? 0 : 1]);
  in_ = ring(sides[is_dialer ? 1 : 0]);
  return true;
}

void LocalLink::start() {
  loop_.add(*this);
  loop_.mark(*this);
}

void LocalLink::drop() {
  queue_.clear();
  loop_.remove(*this);
  if (socket_ >= 0) {
    loop_.poller().remove(socket_, *this);
    shutdown(socket_, SHUT_RDWR);
    ::close(socket_);
  }
  if (peer_bell_ >= 0) ::close(peer_bell_);
  if (memory_ != nullptr) munmap(memory_, shared_bytes);
  socket_ = peer_bell_ = -1;
  memory_ = nullptr;
}

void LocalLink::lose(const std::string& why) {
  drop();
  owner_.lost(peer_, any_channel, why);
}

void LocalLink::close(const std::string& reason) {
  if (is_open()) {
    // A hint only, if there is room for it: without it the peer sees the socket close.
    Frame frame{};
    frame.magic = frame_magic;
    frame.kind = FrameKind::abort;
    frame.size = static_cast<std::uint32_t>(reason.size());
    out_.write(frame, {{const_cast<char*>(reason.data()), reason.size()}});
    ring_peer();
  }
  drop();
}

void LocalLink::ring_peer() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(peer_bell_, &one, sizeof one);
}

void LocalLink::flush() {
  bool has_written = false;
  if (is_open() && must_announce_ && out_.write(announcement(), {})) {
    must_announce_ = false;
    has_written = true;
  }
  while (is_open() && !must_announce_ && !queue_.empty() &&
         owner_.may_send(peer_, queue_.front())) {
    const Outgoing item = queue_.front();
    payload_.clear();
    item.collective->payload_of(item, payload_);
    if (!out_.write(item.collective->frame_of(item), payload_)) break;
    has_written = true;
    queue_.pop_front();
    owner_.sent(peer_, item);
  }
  if (has_written && is_open() && out_.must_ring_reader()) ring_peer();
}

void LocalLink::on_event(std::uint32_t) {
  if (is_open()) {
    // What the peer wrote before it went still counts.
    while (is_open() && has_more()) poll();
    if (is_open()) lose("it closed the connection");
    return;
  }
  char answer;
  std::vector<int> descriptors;
  if (!receive_with(socket_, &answer, 1, 1, descriptors)) {
    const bool is_full = errno == EMFILE;
    for (const int one : descriptors) ::close(one);
    return lose(is_full ? "no room for a descriptor of it: raise the limit (ulimit -n)"
                        : "it did not answer a greeting");
  }
  peer_bell_ = descriptors[0];
  start();
}

bool LocalLink::has_more() {
  try {
    const char* payload;
    return in_.front(payload) != nullptr;
  } catch (const std::runtime_error&) {
    return false;
  }
}

void LocalLink::poll() {
  bool has_read = false;
  try {
    for (int i = 0; i < turn_frames && is_open(); ++i) {
      const char* payload;
      const Frame* frame = in_.front(payload);
      if (frame == nullptr) break;
      if (frame->kind == FrameKind::abort)
        return lose(std::string(payload, frame->size));
      if (frame->kind == FrameKind::begun)
        owner_.begun(peer_, frame->sequence);
      else
        owner_.deliver(peer_, *frame, payload);
      if (!is_open()) return;
      in_.pop();
      has_read = true;
    }
  } catch (const std::runtime_error& error) {
    return lose(error.what());
  }
  if (has_read && in_.must_ring_writer()) ring_peer();
  if (!queue_.empty() || must_announce_) loop_.mark(*this);
}

bool LocalLink::prepare_sleep() { return in_.prepare_sleep(); }

}  // namespace drivetrain
