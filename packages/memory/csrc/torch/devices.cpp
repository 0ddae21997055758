#include "devices.hpp"

#include <utility>

#include "../error.hpp"

namespace drivetrain {

Devices& Devices::of_process() {
  static auto* const devices = new Devices;
  return *devices;
}

void Devices::configure(Settings settings) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& device : devices_) {
    if (device.load() != nullptr) {
      throw MisuseError("the allocator is in use already");
    }
  }
  settings.history = settings_.history;
  settings_ = std::move(settings);
}

Devices::Device& Devices::of(int number) {
  if (Device* device = find(number)) {
    return *device;
  }
  if (number < 0 || number >= kMost) {
    throw MisuseError("there is no device " + std::to_string(number));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  std::atomic<Device*>& device = devices_[static_cast<std::size_t>(number)];
  if (device.load() == nullptr) {
    device = new Device(number, settings_, process_);
  }
  return *device.load();
}

Devices::Device* Devices::find(int number) const {
  if (number < 0 || number >= kMost) {
    return nullptr;
  }
  return devices_[static_cast<std::size_t>(number)].load(std::memory_order_acquire);
}

Devices::Device* Devices::owner(Address at) const {
  for (const auto& device : devices_) {
    Device* found = device.load(std::memory_order_acquire);
    if (found != nullptr && found->allocator.owns(at)) {
      return found;
    }
  }
  return nullptr;
}

void Devices::keep_history(std::size_t most) {
  const std::lock_guard<std::mutex> lock(mutex_);
  settings_.history = most;
  for (const auto& device : devices_) {
    if (Device* found = device.load()) {
      found->allocator.keep_history(most);
    }
  }
}

void Devices::limit(int number, double part) {
  if (!(part > 0.0 && part <= 1.0)) {
    throw MisuseError("a part of the memory lies above 0 and is at most 1");
  }
  Device& device = of(number);
  const auto total = static_cast<double>(device.driver.total_bytes());
  device.allocator.limit(static_cast<Bytes>(part * total));
}

}  // namespace drivetrain
