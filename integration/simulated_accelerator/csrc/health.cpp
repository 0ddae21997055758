#include "health.hpp"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "settings.hpp"

namespace sim {
namespace {

enum State { kWell = 0, kFailed, kLost };

struct Health {
  std::mutex mutex;
  std::atomic<State> state{kWell};
  std::atomic<int> num_failed_groups{0};
  std::string op_error;
  std::map<std::uint64_t, std::string> group_errors;
  // What still fails in these concerns nobody.
  std::set<std::uint64_t> ended_groups;
};

std::array<Health, kMaxDevices>& all() {
  static auto& instance = *new std::array<Health, kMaxDevices>;
  return instance;
}

[[noreturn]] void raise(int code, const std::string& message) {
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, code, message);
}

}  // namespace

void fail_op(int device, const std::string& message) {
  Health& health = all()[device];
  std::lock_guard lock(health.mutex);
  if (health.state != kWell) return;
  health.op_error = message;
  health.state = kFailed;
}

void fail_collective(int device, std::uint64_t group, const std::string& message) {
  Health& health = all()[device];
  std::lock_guard lock(health.mutex);
  if (health.ended_groups.count(group) > 0) return;
  health.group_errors.emplace(group, message);
  health.num_failed_groups = static_cast<int>(health.group_errors.size());
}

void forget_group(std::uint64_t group) {
  for (Health& health : all()) {
    std::lock_guard lock(health.mutex);
    health.group_errors.erase(group);
    health.ended_groups.insert(group);
    health.num_failed_groups = static_cast<int>(health.group_errors.size());
  }
}

void lose(int device) {
  Health& health = all()[device];
  std::lock_guard lock(health.mutex);
  health.state = kLost;
}

void restore(int device) {
  Health& health = all()[device];
  std::lock_guard lock(health.mutex);
  health.state = kWell;
  health.op_error.clear();
  health.group_errors.clear();
  health.num_failed_groups = 0;
}

bool is_broken(int device) { return all()[device].state != kWell; }

bool is_lost(int device) { return all()[device].state == kLost; }

void check_launch(int device) {
  Health& health = all()[device];
  if (health.state == kWell) return;
  std::string message;
  {
    std::lock_guard lock(health.mutex);
    if (health.state == kFailed) message = health.op_error;
  }
  const std::string name = "sim:" + std::to_string(device);
  if (message.empty()) raise(kDeviceLost, "the simulated device " + name + " is lost");
  raise(kOpFailed, message + " (on " + name +
                       "; every later call raises this, until the device is restored)");
}

void check_wait(int device) {
  check_launch(device);
  Health& health = all()[device];
  if (health.num_failed_groups == 0) return;
  std::string message;
  {
    std::lock_guard lock(health.mutex);
    if (health.group_errors.empty()) return;
    message = health.group_errors.begin()->second;
  }
  TORCH_CHECK_WITH(DistBackendError, false, message);
}

}  // namespace sim
