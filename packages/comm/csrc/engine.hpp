// The thread that carries out all collectives of a process, and the doors at which
// peers knock.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "group.hpp"
#include "hello.hpp"
#include "loop.hpp"

namespace drivetrain {

// All methods may be called from any thread.
class Engine {
 public:
  // Listens at a numeric address and, if it has a name, within the host. Throws
  // std::system_error.
  Engine(const std::string& host, const std::string& local_name);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::uint16_t port() const { return port_; }

  std::uint64_t add_group(const Token& token, std::int32_t rank, std::int32_t num_ranks,
                          int buffer_bytes);
  void set_address(std::uint64_t group, std::int32_t peer, Address address);
  void submit(std::uint64_t group, Request request);
  void fail_group(std::uint64_t group, std::string why);
  // When it returns, the memory of the group's collectives is touched no more.
  void remove_group(std::uint64_t group);

 private:
  class Door;
  class Guest;
  using Command = std::function<void()>;

  void run();
  void guarded(const Command& command);
  int timeout_ms();
  void post(Command command);
  Group* find(std::uint64_t group);
  void greeted(Guest& guest);
  void remove(std::uint64_t group);
  void forget(Guest& guest);
  bool has_silent_guests() const;
  void make_room(Group::Time now);
  void open_doors();
  void has_no_descriptor();
  void fail_all(const std::string& why);

  Loop loop_;
  std::uint16_t port_ = 0;
  std::unique_ptr<Door> tcp_door_;
  std::unique_ptr<Door> local_door_;
  std::map<std::uint64_t, std::unique_ptr<Group>> groups_;
  std::map<std::uint64_t, Token> tokens_;
  std::set<Token> removed_;  // whoever comes for them comes too late
  std::vector<std::unique_ptr<Guest>> guests_;
  std::vector<std::unique_ptr<Guest>> left_;  // until the stack is unwound
  bool is_crowded_ = false;  // the doors are shut until a guest has greeted or gone
  std::atomic<std::uint64_t> num_groups_{0};

  std::mutex mutex_;
  std::vector<Command> commands_;
  std::atomic<bool> must_stop_{false};
  std::thread thread_;
};

}  // namespace drivetrain
