#include <c10/core/Device.h>
#include <c10/core/DeviceCapability.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <memory>

#include "allocator.hpp"
#include "event.hpp"
#include "graph.hpp"
#include "settings.hpp"
#include "streams.hpp"

namespace sim {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

constexpr auto kType = c10::DeviceType::PrivateUse1;

Device device_at(int index) { return {kType, static_cast<DeviceIndex>(index)}; }

int index_of(Device device) {
  return device.has_index() ? device.index() : current_device();
}

Stream stream_at(int device, std::int64_t id) {
  return Stream(Stream::UNSAFE, device_at(device), id);
}

StreamQueue& queue_of(const Stream& stream) {
  return stream_queue(stream.device_index(), stream.id());
}

// What torch keeps for an event: queued work shares the ownership.
using EventHandle = std::shared_ptr<Event>;

Event& event_at(void* handle) { return **static_cast<EventHandle*>(handle); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  explicit Guard(c10::DeviceType) {}

  c10::DeviceType type() const override { return kType; }

  Device exchangeDevice(Device device) const override {
    return device_at(exchange_device(device.index()));
  }
  Device getDevice() const override { return device_at(current_device()); }
  void setDevice(Device device) const override {
    check_index(device.index());
    exchange_device(device.index());
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    exchange_device(device.index());
  }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(device_count());
  }
  void synchronizeDevice(DeviceIndex device) const override {
    synchronize_device(device < 0 ? current_device() : device);
  }

  Stream getStream(Device device) const override {
    const int index = index_of(device);
    return stream_at(index, current_stream(index));
  }
  Stream getDefaultStream(Device device) const override {
    return stream_at(index_of(device), kDefaultStream);
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return getNewStream(device, 0);
  }
  Stream getNewStream(Device device, int) const override {
    const int index = index_of(device);
    return stream_at(index, new_stream(index));
  }
  Stream exchangeStream(Stream stream) const override {
    const int device = stream.device_index();
    return stream_at(device, exchange_stream(device, stream.id()));
  }
  void* getStreamNativeHandle(const Stream stream) const override {
    return &queue_of(stream);
  }
  bool queryStream(const Stream& stream) const override {
    return queue_of(stream).is_idle();
  }
  void synchronizeStream(const Stream& stream) const override {
    queue_of(stream).synchronize();
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
  bool isStreamCapturing(const Stream& stream) const override {
    return is_capturing(stream.device_index(), stream.id());
  }
#endif

  void record(void** handle, const Stream& stream, const DeviceIndex,
              const c10::EventFlag flag) const override {
    const bool timing = flag == c10::EventFlag::BACKEND_DEFAULT;
    TORCH_CHECK(!timing || settings().event_timing,
                "this simulated device has no events with enable_timing=True: its "
                "setting event_timing is off");
    if (*handle == nullptr) {
      *handle = new EventHandle(std::make_shared<Event>(timing));
    }
    event_at(*handle).record(queue_of(stream));
  }
  void block(void* handle, const Stream& stream) const override {
    if (handle != nullptr) event_at(handle).block(queue_of(stream));
  }
  bool queryEvent(void* handle) const override {
    return handle == nullptr || event_at(handle).query();
  }
  void synchronizeEvent(void* handle) const override {
    if (handle != nullptr) event_at(handle).synchronize();
  }
  double elapsedTime(void* begin, void* end, const DeviceIndex) const override {
    TORCH_CHECK(begin != nullptr && end != nullptr,
                "both events must be recorded before the time between them is known");
    return event_at(begin).elapsed_ms(event_at(end));
  }
  void destroyEvent(void* handle, const DeviceIndex) const noexcept override {
    delete static_cast<EventHandle*>(handle);
  }

  void recordDataPtrOnStream(const c10::DataPtr& data,
                             const Stream& stream) const override {
    allocator()->recordStream(data, stream);
  }

  c10::DeviceCapability getDeviceCapability(Device) const override {
    c10::DeviceCapability found;
    found.capability_data.capability_bits = 0;
    auto& types = found.capability_data.supported_scalar_types;
    types.has_Byte = types.has_Char = types.has_Short = types.has_Int = true;
    types.has_Long = types.has_Bool = types.has_Half = true;
    types.has_Float = types.has_Double = true;
    types.has_ComplexFloat = types.has_ComplexDouble = true;
    types.has_BFloat16 = settings().bf16;
    return found;
  }
};

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace sim
