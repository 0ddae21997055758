#include "engine.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <future>
#include <utility>

namespace drivetrain {

// Where connections come in.
class Engine::Door final : public EventHandler {
 public:
  Door(Engine& engine, int fd, bool is_local)
      : engine_(engine), fd_(fd), is_local_(is_local) {
    engine_.loop_.poller().add(fd_, EPOLLIN, *this);
  }
  ~Door() override {
    engine_.loop_.poller().remove(fd_, *this);
    ::close(fd_);
  }
  void on_event(std::uint32_t events) override;
  void open() { engine_.loop_.poller().change(fd_, EPOLLIN, *this); }

 private:
  Engine& engine_;
  const int fd_;
  const bool is_local_;
};

namespace {

// Whoever connects says who it is at once; the group of one who has may be made later.
constexpr std::chrono::seconds most_silence(10);
constexpr std::chrono::minutes most_patience(30);
// A rank has long said it by then, where descriptors are short.
constexpr std::chrono::seconds least_silence(1);
constexpr int look_again_ms = 1000;

}  // namespace

// A connection whose rank and group are not known yet, or whose group is not made yet.
class Engine::Guest final : public EventHandler {
 public:
  Guest(Engine& engine, int fd, bool is_local)
      : engine_(engine), fd_(fd), is_local_(is_local) {
    engine_.loop_.poller().add(fd_, EPOLLIN, *this);
  }
  ~Guest() override {
    leave();
    if (fd_ >= 0) ::close(fd_);
    for (const int fd : descriptors_) ::close(fd);
  }

  void on_event(std::uint32_t) override {
    if (!receive()) {
      if (is_local_ && errno == EMFILE) engine_.has_no_descriptor();
      return engine_.forget(*this);
    }
    if (num_bytes_ < sizeof hello_) return;
    if (!check(hello_).empty()) return engine_.forget(*this);
    leave();
    engine_.greeted(*this);
  }

  bool is_late(Group::Time now) const {
    return now - since_ > (has_left_ ? most_patience : most_silence);
  }

  bool is_silent(Group::Time now) const {
    return !has_left_ && now - since_ > least_silence;
  }

  const Hello& hello() const { return hello_; }
  bool has_greeted() const { return has_left_; }

  void hand_over(Group& group) {
    const int fd = std::exchange(fd_, -1);
    const std::vector<int> given = std::exchange(descriptors_, {});
    if (is_local_) return group.accept_local(hello_, fd, given[0], given[1]);
    set_no_delay(fd);
    group.accept_tcp(hello_, fd);
  }

 private:
  void leave() {
    if (!has_left_ && fd_ >= 0) engine_.loop_.poller().remove(fd_, *this);
    has_left_ = true;
  }

  // False if the connection is of no use.
  bool receive() {
    if (is_local_) {
      num_bytes_ = sizeof hello_;
      return receive_with(fd_, &hello_, sizeof hello_, 2, descriptors_);
    }
    const ssize_t got = recv(fd_, reinterpret_cast<char*>(&hello_) + num_bytes_,
                             sizeof hello_ - num_bytes_, MSG_DONTWAIT);
    if (got > 0) num_bytes_ += static_cast<std::size_t>(got);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
  }

  Engine& engine_;
  int fd_;
  const bool is_local_;
  const Group::Time since_ = std::chrono::steady_clock::now();
  Hello hello_{};
  std::size_t num_bytes_ = 0;
  std::vector<int> descriptors_;
  bool has_left_ = false;
};

void Engine::Door::on_event(std::uint32_t) {
  int fd;
  while ((fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0)
    engine_.guests_.push_back(std::make_unique<Guest>(engine_, fd, is_local_));
  if (errno != EMFILE && errno != ENFILE) return;
  // Whoever knocks would be announced for ever.
  engine_.loop_.poller().change(fd_, 0, *this);
  if (engine_.has_silent_guests()) {
    engine_.is_crowded_ = true;
    return;
  }
  engine_.has_no_descriptor();
}

Engine::Engine(const std::string& host, const std::string& local_name) {
  tcp_door_ = std::make_unique<Door>(*this, listen_tcp(host, port_), false);
  if (!local_name.empty())
    local_door_ = std::make_unique<Door>(*this, listen_local(local_name), true);
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  must_stop_ = true;
  loop_.ring();
  thread_.join();
  groups_.clear();
}

void Engine::post(Command command) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commands_.push_back(std::move(command));
  }
  loop_.ring();
}

void Engine::run() {
  while (!must_stop_) {
    std::vector<Command> commands;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      commands.swap(commands_);
    }
    // Each by itself: somebody waits for every one of them.
    for (const Command& command : commands) guarded(command);
    guarded([this] {
      left_.clear();
      loop_.turn(timeout_ms());
    });
  }
}

void Engine::guarded(const Command& command) {
  try {
    command();
  } catch (const std::exception& error) {
    // No memory, or no descriptors: the ranks are told, and the process lives on.
    fail_all(error.what());
  }
}

void Engine::has_no_descriptor() {
  fail_all(
      "this process has too many open files for another connection: "
      "raise the limit (ulimit -n) or use fewer streams");
}

void Engine::fail_all(const std::string& why) {
  for (auto& entry : groups_) entry.second->fail(why);
}

int Engine::timeout_ms() {
  const auto now = std::chrono::steady_clock::now();
  auto next = Group::Time::max();
  for (auto& entry : groups_) next = std::min(next, entry.second->check_deadlines(now));
  for (std::size_t i = guests_.size(); i-- > 0;)
    if (guests_[i]->is_late(now)) forget(*guests_[i]);
  if (is_crowded_) make_room(now);
  const int most = guests_.empty() ? -1 : look_again_ms;
  if (next == Group::Time::max()) return most;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, look_again_ms));
}

Group* Engine::find(std::uint64_t group) {
  const auto found = groups_.find(group);
  return found == groups_.end() ? nullptr : found->second.get();
}

std::uint64_t Engine::add_group(const Token& token, std::int32_t rank,
                                std::int32_t num_ranks, int buffer_bytes) {
  const std::uint64_t id = ++num_groups_;
  post([=] {
    tokens_[id] = token;
    groups_[id] = std::make_unique<Group>(loop_, token, rank, num_ranks, buffer_bytes);
    open_doors();
    for (std::size_t i = guests_.size(); i-- > 0;)
      if (guests_[i]->has_greeted() && guests_[i]->hello().token == token)
        greeted(*guests_[i]);
  });
  return id;
}

void Engine::greeted(Guest& guest) {
  if (removed_.count(guest.hello().token) > 0) return forget(guest);
  for (auto& entry : groups_) {
    if (tokens_[entry.first] != guest.hello().token) continue;
    guest.hand_over(*entry.second);
    return forget(guest);
  }
}

void Engine::forget(Guest& guest) {
  const auto found = std::find_if(guests_.begin(), guests_.end(),
                                  [&](const auto& one) { return one.get() == &guest; });
  if (found == guests_.end()) return;
  left_.push_back(std::move(*found));
  guests_.erase(found);
}

bool Engine::has_silent_guests() const {
  return std::any_of(guests_.begin(), guests_.end(),
                     [](const auto& one) { return !one->has_greeted(); });
}

// Strangers who hold descriptors go before a group fails for want of one.
void Engine::make_room(Group::Time now) {
  const std::size_t num_guests = guests_.size();
  for (std::size_t i = num_guests; i-- > 0;)
    if (guests_[i]->is_silent(now)) forget(*guests_[i]);
  if (guests_.size() == num_guests && has_silent_guests()) return;
  is_crowded_ = false;
  left_.clear();
  open_doors();
}

void Engine::open_doors() {
  tcp_door_->open();
  if (local_door_) local_door_->open();
}

void Engine::set_address(std::uint64_t group, std::int32_t peer, Address address) {
  post([=] {
    if (Group* found = find(group)) found->set_address(peer, address);
  });
}

void Engine::submit(std::uint64_t group, Request request) {
  post([this, group, shared = std::make_shared<Request>(std::move(request))] {
    if (Group* found = find(group))
      found->submit(std::move(*shared));
    else
      shared->ticket->finish("the process group was destroyed");
  });
}

void Engine::fail_group(std::uint64_t group, std::string why) {
  post([=] {
    if (Group* found = find(group)) found->fail(why);
  });
}

void Engine::remove(std::uint64_t group) {
  groups_.erase(group);
  const auto found = tokens_.find(group);
  if (found == tokens_.end()) return;
  removed_.insert(found->second);
  tokens_.erase(found);
}

void Engine::remove_group(std::uint64_t group) {
  auto removed = std::make_shared<std::promise<void>>();
  post([this, group, removed] {
    remove(group);
    removed->set_value();
  });
  removed->get_future().wait();
}

}  // namespace drivetrain
