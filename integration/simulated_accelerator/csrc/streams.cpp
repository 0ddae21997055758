#include "streams.hpp"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

#include "health.hpp"
#include "settings.hpp"

namespace sim {
namespace {

// As many as CUDA has in its pool; further ones are shared in turn.
constexpr std::int64_t kPoolSize = 32;
constexpr std::int64_t kMaxStreams = 1 + 2 * kPoolSize;

// A collective may wait for a peer that is gone, and must not keep the process.
constexpr auto kQuiesceLimit = std::chrono::seconds(2);

struct DeviceStreams {
  std::mutex mutex;
  std::array<std::atomic<StreamQueue*>, kMaxStreams> queues{};
  std::int64_t num_handed_out = 0;
  std::int64_t num_internal = 0;
  std::atomic<bool> initialized{false};
};

std::array<DeviceStreams, kMaxDevices>& all() {
  static auto& instance = *new std::array<DeviceStreams, kMaxDevices>;
  return instance;
}

std::atomic<bool> any_initialized{false};
std::atomic<bool> in_bad_fork{false};

thread_local int this_device = 0;
thread_local std::array<std::int64_t, kMaxDevices> these_streams{};

void after_fork_in_child() {
  if (any_initialized) in_bad_fork = true;
}

}  // namespace

int device_count() { return settings().devices; }

int current_device() { return this_device; }

int exchange_device(int device) {
  const int previous = this_device;
  if (device >= 0) this_device = device;
  return previous;
}

void check_index(int device) {
  TORCH_CHECK(device >= 0 && device < device_count(), "there is no device sim:", device,
              ": this process has ", device_count(),
              " simulated device(s), counted from 0");
}

std::int64_t current_stream(int device) { return these_streams[device]; }

std::int64_t exchange_stream(int device, std::int64_t id) {
  return std::exchange(these_streams[device], id);
}

std::int64_t new_stream(int device) {
  check_index(device);
  if (!settings().streams) return kDefaultStream;
  DeviceStreams& streams = all()[device];
  std::lock_guard lock(streams.mutex);
  return 1 + streams.num_handed_out++ % kPoolSize;
}

std::int64_t new_internal_stream(int device) {
  check_index(device);
  DeviceStreams& streams = all()[device];
  std::lock_guard lock(streams.mutex);
  return 1 + kPoolSize + streams.num_internal++ % kPoolSize;
}

StreamQueue& stream_queue(int device, std::int64_t id) {
  std::atomic<StreamQueue*>& slot = all()[device].queues[id];
  StreamQueue* queue = slot.load(std::memory_order_acquire);
  if (queue != nullptr && !in_bad_fork) return *queue;
  initialize(device);
  std::lock_guard lock(all()[device].mutex);
  if (slot == nullptr) slot = new StreamQueue(device, id);
  return *slot;
}

StreamQueue& current_queue(int device) {
  return stream_queue(device, current_stream(device));
}

std::vector<StreamQueue*> queues_of(int device) {
  std::vector<StreamQueue*> found;
  for (auto& slot : all()[device].queues) {
    if (StreamQueue* queue = slot.load(std::memory_order_acquire)) {
      found.push_back(queue);
    }
  }
  return found;
}

void synchronize_device(int device) {
  check_index(device);
  if (in_bad_fork) initialize(device);
  for (StreamQueue* queue : queues_of(device)) queue->synchronize();
  check_wait(device);
}

bool is_initialized() { return any_initialized && !in_bad_fork; }

bool is_initialized(int device) { return all()[device].initialized && !in_bad_fork; }

void initialize(int device) {
  check_index(device);
  TORCH_CHECK(!in_bad_fork,
              "the simulated device cannot be used in a forked process, because the "
              "process that forked has used it: its streams are threads, which do not "
              "survive a fork. Use the start method 'spawn' or 'forkserver'");
  if (all()[device].initialized) return;
  static std::once_flag registered;
  std::call_once(registered,
                 [] { pthread_atfork(nullptr, nullptr, &after_fork_in_child); });
  all()[device].initialized = true;
  any_initialized = true;
}

bool is_in_bad_fork() { return in_bad_fork; }

void quiesce_all() {
  if (in_bad_fork) return;
  std::vector<StreamQueue*> queues;
  for (int device = 0; device < kMaxDevices; ++device) {
    for (StreamQueue* queue : queues_of(device)) queues.push_back(queue);
  }
  for (StreamQueue* queue : queues) queue->begin_quiesce();
  const auto deadline = std::chrono::steady_clock::now() + kQuiesceLimit;
  for (StreamQueue* queue : queues) queue->wait_quiet(deadline);
}

}  // namespace sim
