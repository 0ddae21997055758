#include "cuda_driver.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "../error.hpp"

namespace drivetrain {

namespace {

constexpr Bytes kLeastChunk = Bytes{2} << 20;
// How far apart ranges begin, beside what the device has.
constexpr Bytes kApartOfDevice = 2;

cuda::StreamHandle handle(Stream stream) {
  return reinterpret_cast<cuda::StreamHandle>(stream);
}

cuda::EventHandle handle_of(Event event) {
  return reinterpret_cast<cuda::EventHandle>(event);
}

void require_virtual_memory(const cuda::Api& api, cuda::Device device) {
  int supported = 0;
  api.check(api.cuDeviceGetAttribute(&supported, cuda::kVirtualMemorySupported, device),
            "cuDeviceGetAttribute");
  if (supported == 0) {
    throw DriverError("device " + std::to_string(device) +
                      " has no virtual memory management");
  }
}

}  // namespace

// Calls happen on the device, whatever the thread has chosen, and may happen while any
// stream is captured: none of them is part of what is captured.
class CudaDriver::Scope {
 public:
  explicit Scope(const CudaDriver& driver) : Scope(driver, driver.context_) {}
  Scope(const CudaDriver& driver, cuda::Context context) : api_(driver.api_) {
    api_.check(api_.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
    api_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~Scope() {
    api_.cuThreadExchangeStreamCaptureMode(&mode_);
    cuda::Context popped = nullptr;
    api_.cuCtxPopCurrent_v2(&popped);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const cuda::Api& api_;
  int mode_ = cuda::kCaptureModeRelaxed;
};

CudaDriver::CudaDriver(int device, bool peers, const std::string& library)
    : api_(cuda::load_api(library)) {
  api_.check(api_.cuDeviceGet(&device_, device), "cuDeviceGet");
  require_virtual_memory(api_, device_);
  int rdma = 0;
  api_.cuDeviceGetAttribute(&rdma, cuda::kDirectRdmaSupported, device_);
  api_.check(api_.cuDevicePrimaryCtxRetain(&context_, device_),
             "cuDevicePrimaryCtxRetain");
  properties_.type = cuda::kPinned;
  properties_.location = {cuda::kOnDevice, device_};
  properties_.flags.direct_rdma = rdma != 0;
  int shares = 0;
  api_.cuDeviceGetAttribute(&shares, cuda::kFileHandlesSupported, device_);
  properties_.handle_types = shares != 0 ? cuda::kFileHandle : 0;
  std::size_t granularity = 0;
  contexts_.insert(context_);
  const Scope scope(*this);
  api_.check(api_.cuMemGetAllocationGranularity(&granularity, &properties_,
                                                cuda::kMinimumGranularity),
             "cuMemGetAllocationGranularity");
  chunk_ = std::max<Bytes>(granularity, kLeastChunk);
  access_.push_back({properties_.location, cuda::kReadWrite});
  int count = 0;
  api_.check(api_.cuDeviceGetCount(&count), "cuDeviceGetCount");
  for (int i = 0; peers && i < count; ++i) {
    cuda::Device peer = 0;
    int reachable = 0;
    api_.check(api_.cuDeviceGet(&peer, i), "cuDeviceGet");
    if (peer == device_) {
      continue;
    }
    api_.check(api_.cuDeviceCanAccessPeer(&reachable, peer, device_),
               "cuDeviceCanAccessPeer");
    if (reachable != 0) {
      access_.push_back({{cuda::kOnDevice, peer}, cuda::kReadWrite});
    }
  }
}

CudaDriver::~CudaDriver() {
  try {
    const Scope scope(*this);
    for (const cuda::EventHandle event : events_) {
      api_.cuEventDestroy_v2(event);
    }
  } catch (const DriverError&) {
    // The driver has ended before us, and all that was ours with it.
  }
}

int CudaDriver::count(const std::string& library) {
  const cuda::Api& api = cuda::load_api(library);
  int count = 0;
  api.check(api.cuDeviceGetCount(&count), "cuDeviceGetCount");
  for (int i = 0; i < count; ++i) {
    cuda::Device device = 0;
    api.check(api.cuDeviceGet(&device, i), "cuDeviceGet");
    require_virtual_memory(api, device);
  }
  return count;
}

Bytes CudaDriver::total_bytes() {
  std::size_t total = 0;
  api_.check(api_.cuDeviceTotalMem_v2(&total, device_), "cuDeviceTotalMem");
  return total;
}

Bytes CudaDriver::free_bytes() {
  const Scope scope(*this);
  std::size_t free = 0;
  std::size_t total = 0;
  api_.check(api_.cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
  return free;
}

Address CudaDriver::reserve(Bytes bytes) {
  const Scope scope(*this);
  cuda::DevicePointer at = 0;
  api_.check(api_.cuMemAddressReserve(&at, bytes, chunk_, next_range_, 0),
             "cuMemAddressReserve");
  next_range_ = at + round_up(kApartOfDevice * total_bytes(), chunk_);
  return at;
}

bool CudaDriver::extend(Address end, Bytes bytes) {
  const Scope scope(*this);
  cuda::DevicePointer at = 0;
  if (api_.cuMemAddressReserve(&at, bytes, chunk_, end, 0) != cuda::kSuccess) {
    return false;
  }
  if (at != end) {
    api_.check(api_.cuMemAddressFree(at, bytes), "cuMemAddressFree");
  }
  return at == end;
}

void CudaDriver::unreserve(Address at, Bytes bytes) {
  const Scope scope(*this);
  api_.check(api_.cuMemAddressFree(at, bytes), "cuMemAddressFree");
}

bool CudaDriver::create(Handle* chunk) {
  const Scope scope(*this);
  cuda::AllocationHandle made = 0;
  const cuda::Result result = api_.cuMemCreate(&made, chunk_, &properties_, 0);
  if (result == cuda::kOutOfMemory) {
    return false;
  }
  api_.check(result, "cuMemCreate");
  *chunk = made;
  return true;
}

void CudaDriver::destroy(Handle chunk) {
  const Scope scope(*this);
  api_.check(api_.cuMemRelease(chunk), "cuMemRelease");
}

void CudaDriver::map(Address at, const Handle* chunks, std::size_t count) {
  const Scope scope(*this);
  std::size_t mapped = 0;
  cuda::Result result = cuda::kSuccess;
  const char* function = "cuMemMap";
  while (mapped < count && result == cuda::kSuccess) {
    result = api_.cuMemMap(at + mapped * chunk_, chunk_, 0, chunks[mapped], 0);
    mapped += result == cuda::kSuccess;
  }
  if (result == cuda::kSuccess) {
    // Once for the whole range: what this costs hardly depends on its length.
    function = "cuMemSetAccess";
    result = api_.cuMemSetAccess(at, count * chunk_, access_.data(), access_.size());
  }
  if (result != cuda::kSuccess) {
    for (std::size_t i = 0; i < mapped; ++i) {
      api_.cuMemUnmap(at + i * chunk_, chunk_);
    }
    api_.check(result, function);
  }
}

void CudaDriver::unmap(Address at, std::size_t count) {
  const Scope scope(*this);
  for (std::size_t i = 0; i < count; ++i) {
    api_.check(api_.cuMemUnmap(at + i * chunk_, chunk_), "cuMemUnmap");
  }
}

Event CudaDriver::record(Stream stream) {
  const Scope scope(*this);
  cuda::EventHandle event = nullptr;
  if (events_.empty()) {
    api_.check(api_.cuEventCreate(&event, cuda::kEventWithoutTiming), "cuEventCreate");
  } else {
    event = events_.back();
    events_.pop_back();
  }
  const cuda::Result result = api_.cuEventRecord(event, handle(stream));
  if (result == cuda::kSuccess) {
    return reinterpret_cast<Event>(event);
  }
  events_.push_back(event);
  const cuda::Context other =
      result == cuda::kInvalidHandle ? context_of(stream) : nullptr;
  if (other == nullptr) {
    api_.check(result, "cuEventRecord");
  }
  // A stream of another device: its events are made there.
  const Scope there(*this, other);
  api_.check(api_.cuEventCreate(&event, cuda::kEventWithoutTiming), "cuEventCreate");
  const cuda::Result recorded = api_.cuEventRecord(event, handle(stream));
  if (recorded != cuda::kSuccess) {
    api_.cuEventDestroy_v2(event);
    api_.check(recorded, "cuEventRecord");
  }
  foreign_.insert(reinterpret_cast<Event>(event));
  return reinterpret_cast<Event>(event);
}

bool CudaDriver::done(Event event) {
  const Scope scope(*this);
  const cuda::Result result = api_.cuEventQuery(handle_of(event));
  if (result == cuda::kNotReady) {
    return false;
  }
  api_.check(result, "cuEventQuery");
  return true;
}

void CudaDriver::wait(Stream stream, Event event) {
  const Scope scope(*this);
  api_.check(api_.cuStreamWaitEvent(handle(stream), handle_of(event), 0),
             "cuStreamWaitEvent");
}

void CudaDriver::synchronize(Event event) {
  const Scope scope(*this);
  api_.check(api_.cuEventSynchronize(handle_of(event)), "cuEventSynchronize");
}

void CudaDriver::forget(Event event) {
  if (foreign_.erase(event) > 0) {
    api_.cuEventDestroy_v2(handle_of(event));
  } else {
    events_.push_back(handle_of(event));
  }
}

cuda::Context CudaDriver::context_of(Stream stream) {
  cuda::Context found = nullptr;
  api_.cuStreamGetCtx(handle(stream), &found);
  return found;
}

bool CudaDriver::capturing(Stream stream) {
  const Scope scope(*this);
  int status = cuda::kCaptureNone;
  cuda::Result result = api_.cuStreamIsCapturing(handle(stream), &status);
  if (result == cuda::kInvalidHandle) {
    const cuda::Context other = context_of(stream);
    if (other == nullptr) {
      throw StreamGone("stream " + std::to_string(stream) + " was destroyed");
    }
    const Scope there(*this, other);
    result = api_.cuStreamIsCapturing(handle(stream), &status);
  }
  if (result == cuda::kCaptureImplicit) {
    return true;  // The legacy stream, while one that waits for it is captured.
  }
  api_.check(result, "cuStreamIsCapturing");
  return status != cuda::kCaptureNone;
}

char* CudaDriver::take_host(Bytes bytes) {
  const Scope scope(*this);
  void* memory = nullptr;
  api_.check(api_.cuMemAllocHost_v2(&memory, bytes), "cuMemAllocHost");
  return static_cast<char*>(memory);
}

void CudaDriver::give_host(char* memory) {
  const Scope scope(*this);
  api_.cuMemFreeHost(memory);
}

void CudaDriver::read(char* to, Address from, Bytes bytes) {
  const Scope scope(*this);
  api_.check(api_.cuMemcpyDtoH_v2(to, from, bytes), "cuMemcpyDtoH");
}

void CudaDriver::write(Address to, const char* from, Bytes bytes) {
  const Scope scope(*this);
  api_.check(api_.cuMemcpyHtoD_v2(to, from, bytes), "cuMemcpyHtoD");
}

int CudaDriver::share(Handle chunk) {
  if (properties_.handle_types == 0 || api_.cuMemExportToShareableHandle == nullptr) {
    throw DriverError("device " + std::to_string(device_) + " shares no memory");
  }
  const Scope scope(*this);
  int file = -1;
  api_.check(api_.cuMemExportToShareableHandle(&file, chunk, cuda::kFileHandle, 0),
             "cuMemExportToShareableHandle");
  return file;
}

Address CudaDriver::open(std::size_t count,
                         const std::function<int(std::size_t)>& fetch) {
  if (api_.cuMemImportFromShareableHandle == nullptr) {
    throw DriverError("the CUDA driver opens no shared memory");
  }
  close_all();
  const Scope scope(*this);
  std::vector<Handle> chunks;
  const auto release = [&] {
    // What is mapped stays as long as it is mapped.
    for (const Handle chunk : chunks) {
      api_.cuMemRelease(chunk);
    }
  };
  Address at = 0;
  try {
    for (std::size_t i = 0; i < count; ++i) {
      const int file = fetch(i);
      cuda::AllocationHandle chunk = 0;
      const cuda::Result result = api_.cuMemImportFromShareableHandle(
          &chunk, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
          cuda::kFileHandle);
      ::close(file);
      api_.check(result, "cuMemImportFromShareableHandle");
      chunks.push_back(chunk);
    }
    at = reserve(count * chunk_);
    map(at, chunks.data(), chunks.size());
  } catch (...) {
    release();
    if (at != 0) {
      api_.cuMemAddressFree(at, count * chunk_);
    }
    throw;
  }
  release();
  return at;
}

void CudaDriver::close(Address at, std::size_t count, std::shared_ptr<void> hold) {
  {
    const std::lock_guard<std::mutex> lock(closing_mutex_);
    closing_.push_back({at, count, std::move(hold)});
  }
  close_all();
}

void CudaDriver::close_all() {
  const std::lock_guard<std::mutex> lock(closing_mutex_);
  if (closing_.empty() || !synchronize_all()) {
    return;
  }
  while (!closing_.empty()) {
    const Closing one = std::move(closing_.back());
    closing_.pop_back();
    unmap(one.at, one.count);
    unreserve(one.at, one.count * chunk_);
  }
}

bool CudaDriver::synchronize_all() {
  for (const cuda::Context context : contexts_) {
    const Scope there(*this, context);
    const cuda::Result result = api_.cuCtxSynchronize();
    if (result >= cuda::kFirstOfCapture && result <= cuda::kLastOfCapture) {
      return false;
    }
    api_.check(result, "cuCtxSynchronize");
  }
  return true;
}

void CudaDriver::meet(Stream stream) {
  const Scope scope(*this);
  const cuda::Context context = context_of(stream);
  if (context != nullptr) {
    contexts_.insert(context);
  }
}

}  // namespace drivetrain
