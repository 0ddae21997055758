#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <algorithm>
#include <cstring>

#include "allocator.hpp"
#include "device_memory.hpp"
#include "generator.hpp"
#include "pinned.hpp"
#include "registration.hpp"
#include "streams.hpp"

namespace sim {
namespace {

using c10::DeviceIndex;

int index_or_current(DeviceIndex device) {
  return device < 0 ? current_device() : device;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(DeviceIndex device) const override {
    return is_initialized(index_or_current(device));
  }
  void init() const override {}

  DeviceIndex deviceCount() const override {
    return static_cast<DeviceIndex>(device_count());
  }
  void setCurrentDevice(DeviceIndex device) const override {
    check_index(device);
    exchange_device(device);
  }
  DeviceIndex getCurrentDevice() const override {
    return static_cast<DeviceIndex>(current_device());
  }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    if (device >= 0) check_index(device);
    return static_cast<DeviceIndex>(exchange_device(device));
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return exchangeDevice(device);
  }

  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }
  c10::Device getDeviceFromPtr(void* address) const override {
    const int device = device_of(address);
    TORCH_CHECK(device >= 0, "the address is not one of a simulated device");
    return {c10::DeviceType::PrivateUse1, static_cast<DeviceIndex>(device)};
  }

  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return default_generator(index_or_current(device));
  }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return new_generator(index_or_current(device));
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage,
                              std::size_t size) const override {
    const int device = storage.device().index();
    const int previous = exchange_device(device);
    c10::DataPtr grown = allocator()->allocate(size);
    exchange_device(previous);
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    const std::size_t kept = std::min(impl->nbytes(), size);
    if (kept > 0) {
      void* from = device_to_shadow(device, impl->mutable_data());
      void* to = device_to_shadow(device, grown.get());
      current_queue(device).push([=] { std::memcpy(to, from, kept); });
    }
    impl->set_data_ptr_noswap(std::move(grown));
    impl->set_nbytes(size);
  }
};

}  // namespace

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

}  // namespace sim
