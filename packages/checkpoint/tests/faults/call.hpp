// One call by which a process changes its storage: what is to become of it, as the
// memory says that is shared with the test, and its line in the log.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

namespace drivetrain_faults {

enum Action : std::int64_t { kNone, kKill, kFail, kHang, kShort, kGate };

// Mirrored by shim.py, field by field. All processes share it.
struct Control {
  std::atomic<std::int64_t> count;   // calls so far, of all processes
  std::atomic<std::int64_t> hits;    // how often the action was taken
  std::atomic<std::int64_t> locked;  // a call is being recorded
  std::atomic<std::int64_t> action;
  std::atomic<std::int64_t> at;          // the number of the call, from 1
  std::atomic<std::int64_t> error;       // for kFail
  std::atomic<std::int64_t> lasts;       // whether all calls after it fail too
  std::atomic<std::int64_t> reads;       // whether opening to read counts
  std::atomic<std::int64_t> record;      // whether calls are written to the log
  std::atomic<std::int64_t> buffered;    // whether O_DIRECT is refused
  std::atomic<std::int64_t> is_victim;   // whether kKill ends the calling process
  std::atomic<std::int64_t> victims[4];  // which others it ends
};

constexpr int kMostFiles = 1 << 16;
inline std::atomic<bool> watched[kMostFiles];
inline std::string root;
inline int log_fd = -1;

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// Calls the function that is hidden by the one of this name here.
#define REAL(name, ...)                                       \
  ([&] {                                                      \
    static const auto found = real<decltype(&::name)>(#name); \
    return found(__VA_ARGS__);                                \
  }())

inline Control* control() {
  static std::atomic<Control*> shared{nullptr};
  if (Control* const known = shared.load()) return known;
  const char* const place = getenv("DRIVETRAIN_FAULTS_CONTROL");
  const char* const folder = getenv("DRIVETRAIN_FAULTS_ROOT");
  if (place == nullptr || folder == nullptr) return nullptr;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (shared.load() != nullptr) return shared.load();
  root = folder;
  const int fd = REAL(open, place, O_RDWR | O_CLOEXEC);
  void* const memory =
      mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) abort();
  REAL(close, fd);
  log_fd = REAL(open, (std::string(place) + ".log").c_str(),
                O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  shared = static_cast<Control*>(memory);
  return shared;
}

inline std::string link_of(int fd) {
  char text[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), text, sizeof text);
  return length > 0 ? std::string(text, static_cast<std::size_t>(length)) : "";
}

inline std::string absolute(int folder, const char* path) {
  if (path[0] == '/') return path;
  if (folder != AT_FDCWD) return link_of(folder) + "/" + path;
  char text[PATH_MAX];
  return getcwd(text, sizeof text) == nullptr ? path : std::string(text) + "/" + path;
}

inline bool is_below_root(const std::string& path) {
  return control() != nullptr && path.compare(0, root.size(), root) == 0 &&
         (path.size() == root.size() || path[root.size()] == '/');
}

inline bool is_watched(int fd) {
  return fd >= 0 && fd < kMostFiles && watched[fd].load();
}

inline void pause_briefly() {
  const timespec moment{0, 200000};
  nanosleep(&moment, nullptr);
}

// One call on its way: what is to become of it, and how it is recorded.
class Call {
 public:
  Call() {
    Control& shared = *control();
    const std::int64_t index = ++shared.count;
    const std::int64_t action = shared.action.load();
    const std::int64_t at = shared.at.load();
    const bool is_it = index == at;
    switch (action) {
      case kKill:
        if (is_it) kill_victims(shared);
        break;
      case kFail:
        if (is_it || (shared.lasts.load() != 0 && index > at)) {
          ++shared.hits;
          error = static_cast<int>(shared.error.load());
        }
        break;
      case kShort:
        is_short = is_it;
        if (is_it) ++shared.hits;
        break;
      case kHang:
        if (is_it) ++shared.hits;
        while (is_it && shared.action.load() == kHang && shared.at.load() == at)
          pause_briefly();
        break;
      case kGate:
        while (shared.action.load() == kGate && index > shared.at.load())
          pause_briefly();
        break;
      default:
        break;
    }
    is_recorded_ = shared.record.load() != 0 && error == 0;
    // The order of the log is that of the calls, since they come one after the other.
    while (is_recorded_ && shared.locked.exchange(1) != 0) sched_yield();
  }

  ~Call() {
    const int kept = errno;
    if (is_recorded_) control()->locked = 0;
    errno = kept;
  }

  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void record(const char* kind, const std::string& path, const std::string& other = "",
              std::int64_t offset = 0, std::int64_t size = 0,
              const void* data = nullptr) {
    if (!is_recorded_) return;
    const int kept = errno;
    const std::string line = std::string(kind) + '\t' + path + '\t' + other + '\t' +
                             std::to_string(offset) + '\t' + std::to_string(size) +
                             '\n';
    const iovec parts[] = {
        {const_cast<char*>(line.data()), line.size()},
        {const_cast<void*>(data), data == nullptr ? 0 : static_cast<std::size_t>(size)},
    };
    if (REAL(writev, log_fd, parts, 2) < 0) abort();
    errno = kept;
  }

  int error = 0;
  bool is_short = false;

 private:
  static void kill_victims(Control& shared) {
    ++shared.hits;
    for (const auto& victim : shared.victims)
      if (victim.load() > 0) kill(static_cast<pid_t>(victim.load()), SIGKILL);
    if (shared.is_victim.load() != 0) {
      kill(getpid(), SIGKILL);
      for (;;) pause();
    }
  }

  bool is_recorded_ = false;
};

}  // namespace drivetrain_faults
