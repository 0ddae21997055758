// A link within a host: two queues in shared memory, and a bell for each side.

#pragma once

#include "frame_queue.hpp"
#include "hello.hpp"
#include "link.hpp"
#include "loop.hpp"

namespace drivetrain {

class LocalLink final : public Link, public EventHandler, public Polled {
 public:
  LocalLink(LinkOwner& owner, std::int32_t peer, Loop& loop);
  ~LocalLink() override;

  bool is_waiting() const { return socket_ < 0; }

  // Makes the memory and offers it to the peer.
  void dial(const std::string& name, const Hello& hello);

  // Takes over what a peer has offered: its connection, its memory and its bell.
  void open(int socket, int memory, int bell);

  void flush() override;
  void close(const std::string& reason) override;
  void on_event(std::uint32_t events) override;
  void poll() override;
  bool prepare_sleep() override;

 private:
  bool is_open() const { return peer_bell_ >= 0; }
  bool map(int memory, bool is_dialer);
  void start();
  void ring_peer() const;
  bool has_more();
  void lose(const std::string& why);
  void drop();

  Loop& loop_;
  int socket_ = -1;  // tells when the peer is gone
  int peer_bell_ = -1;
  void* memory_ = nullptr;
  FrameQueue out_{};
  FrameQueue in_{};
  std::vector<iovec> payload_;
};

}  // namespace drivetrain
