#include "descriptor.hpp"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <unordered_set>

namespace drivetrain {

namespace {

// Left for what else a process opens.
constexpr rlim_t kOthers = 512;

struct Open {
  std::mutex mutex;
  std::unordered_set<int> files;
  std::atomic<std::uint64_t> generation{0};
};

// Never destroyed: descriptors are closed until the very end.
Open& open_here() {
  static Open* const open = [] {
    auto* made = new Open;
    pthread_atfork([] { open_here().mutex.lock(); }, [] { open_here().mutex.unlock(); },
                   [] {
                     Open& open = open_here();
                     for (const int file : open.files) {
                       close(file);
                     }
                     open.files.clear();
                     ++open.generation;
                     open.mutex.unlock();
                   });
    return made;
  }();
  return *open;
}

// A new descriptor is the lowest that is free, so that its number says how many there
// are.
void make_room_above(int file) {
  struct rlimit limit = {};
  const rlim_t wanted = static_cast<rlim_t>(file) + kOthers;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && wanted > limit.rlim_cur) {
    limit.rlim_cur = std::min(2 * wanted, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace

Descriptor::Descriptor(int file) : file_(file) {
  // What the system says of a failure is for who asked.
  if (file < 0) {
    return;
  }
  make_room_above(file);
  const std::lock_guard<std::mutex> lock(open_here().mutex);
  generation_ = open_here().generation;
  open_here().files.insert(file);
}

Descriptor::~Descriptor() {
  if (file_ < 0) {
    return;
  }
  const std::lock_guard<std::mutex> lock(open_here().mutex);
  if (get() >= 0) {
    open_here().files.erase(file_);
    close(file_);
  }
}

int Descriptor::get() const {
  return file_ >= 0 && generation_ == open_here().generation ? file_ : -1;
}

}  // namespace drivetrain
