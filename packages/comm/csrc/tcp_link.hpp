// A link over one TCP connection.

#pragma once

#include <memory>

#include "hello.hpp"
#include "link.hpp"
#include "loop.hpp"

namespace drivetrain {

class TcpLink final : public Link, public EventHandler {
 public:
  TcpLink(LinkOwner& owner, std::int32_t peer, std::int32_t channel, Loop& loop);
  ~TcpLink() override;

  bool is_waiting() const { return state_ == State::waiting; }

  // Takes over a connection on which the peer has greeted.
  void open(int fd);

  // Connects and greets, without waiting.
  void dial(const std::string& host, std::uint16_t port, const Hello& hello,
            int buffer_bytes);

  void flush() override;
  void close(const std::string& reason) override;
  void on_event(std::uint32_t events) override;

 private:
  enum class State { waiting, connecting, open, draining, closed };

  bool is_open() const { return state_ == State::open; }
  void connected();
  void drain();
  bool begin_front();
  void send_front();
  void receive();
  bool receive_some(iovec* to, std::size_t count, std::size_t& got);
  void begin_payload();
  void end_payload();
  void lose(const std::string& why, bool is_all = false);
  void drop();

  const std::int32_t channel_;
  Loop& loop_;
  State state_ = State::waiting;
  int fd_ = -1;
  Hello hello_{};
  bool wants_write_ = false;

  // Going out: what is left of the front of the queue.
  Frame out_frame_{};
  std::vector<iovec> out_;
  std::size_t out_at_ = 0;
  bool is_announcing_ = false;

  // Coming in.
  Frame in_frame_{};
  std::size_t in_header_ = 0;
  bool is_direct_ = false;
  std::vector<iovec> in_;
  std::size_t in_at_ = 0;
  std::vector<char> buffer_;
};

}  // namespace drivetrain
