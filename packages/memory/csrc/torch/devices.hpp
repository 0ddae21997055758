// The allocators of a process that trains: one for each CUDA device, made when it is
// first asked for memory.

#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "../allocator.hpp"
#include "../driver/cuda_driver.hpp"
#include "graph_pools.hpp"

namespace drivetrain {

class Devices {
 public:
  static constexpr int kMost = 64;

  struct Settings {
    Options options;
    bool peers = false;
    std::string library = "libcuda.so.1";
    // How many entries of history each keeps.
    std::size_t history = 0;
  };

  struct Device {
    CudaDriver driver;
    Allocator allocator;
    GraphPools pools;

    Device(int number, const Settings& settings, std::shared_ptr<ProcessState> process)
        : driver(number, settings.peers, settings.library),
          allocator(driver, settings.options, std::move(process)) {
      allocator.keep_history(settings.history);
    }
  };

  // Those of this process. They are never destroyed: PyTorch frees until the very end.
  static Devices& of_process();

  ProcessState& process() { return *process_; }

  // Throws MisuseError when a device is in use already.
  void configure(Settings settings);

  // Throws DriverError, MisuseError for a number that cannot be.
  Device& of(int number);

  // The device if it is in use; else null.
  Device* find(int number) const;

  // The device that an address belongs to; null when it is none of ours.
  Device* owner(Address at) const;

  // Each keeps the last entries of what happens, those that come later too.
  void keep_history(std::size_t most);

  // No more than this part of a device's memory is used from now on.
  void limit(int number, double part);

 private:
  std::mutex mutex_;
  Settings settings_;
  std::shared_ptr<ProcessState> process_ = std::make_shared<ProcessState>();
  std::array<std::atomic<Device*>, kMost> devices_{};
};

}  // namespace drivetrain
