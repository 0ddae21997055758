// A CUDA driver in the machine's own memory that holds callers to the rules which the
// driver's documentation states. This file has devices and contexts;
// `strict/memory.cpp`, `strict/streams.cpp` and `strict/transfer.cpp` name the rules of
// the rest, and `strict/control.hpp` is what tests set and ask.
//
// A stream that nobody has named is a non-blocking one of device 0.

#include <dlfcn.h>

#include <cstring>

#include "strict/state.hpp"

using namespace strict;

namespace {

constexpr U64 kFirstContext = 0xc0;
constexpr int kDriverVersion = 12080;
// CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, and that handles can be file
// descriptors.
constexpr int kVirtualMemory = 102;
constexpr int kFileDescriptors = 103;

thread_local std::vector<int> contexts;

int device_of_context(const void* context) {
  return static_cast<int>(reinterpret_cast<U64>(context) - kFirstContext);
}

struct Name {
  Result result;
  const char* name;
};

constexpr Name kNames[] = {
    {kSuccess, "CUDA_SUCCESS"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
    {kNotReady, "CUDA_ERROR_NOT_READY"},
    {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED"},
    {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {kCaptureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
    {kCaptureImplicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
    {kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT"},
};

}  // namespace

namespace strict {

int current_device() { return contexts.empty() ? -1 : contexts.back(); }

void* context_of_device(int device) {
  return reinterpret_cast<void*>(static_cast<U64>(device) + kFirstContext);
}

}  // namespace strict

STRICT Result cuInit(unsigned) {
  static Function& called = function("cuInit");
  return call(called, [](State&) -> Result { return kSuccess; });
}

STRICT Result cuDriverGetVersion(int* version) {
  *version = kDriverVersion;
  return kSuccess;
}

STRICT Result cuGetErrorName(Result result, const char** name) {
  *name = "CUDA_ERROR_UNKNOWN";
  for (const Name& known : kNames) {
    if (known.result == result) {
      *name = known.name;
    }
  }
  return kSuccess;
}

STRICT Result cuGetErrorString(Result result, const char** text) {
  return cuGetErrorName(result, text);
}

STRICT Result cuDeviceGet(int* device, int number) {
  static Function& called = function("cuDeviceGet");
  return call(called, [&](State& now) -> Result {
    *device = number;
    return number >= 0 && number < now.num_devices ? kSuccess : kInvalidDevice;
  });
}

STRICT Result cuDeviceGetCount(int* count) {
  static Function& called = function("cuDeviceGetCount");
  return call(called, [&](State& now) -> Result {
    *count = now.num_devices;
    return kSuccess;
  });
}

STRICT Result cuDeviceGetAttribute(int* value, int attribute, int) {
  static Function& called = function("cuDeviceGetAttribute");
  return call(called, [&](State&) -> Result {
    *value = attribute == kVirtualMemory || attribute == kFileDescriptors;
    return kSuccess;
  });
}

STRICT Result cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  static Function& called = function("cuDeviceTotalMem");
  return call(called, [&](State& now) -> Result {
    *bytes = now.total;
    return kSuccess;
  });
}

STRICT Result cuDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return kSuccess;
}

STRICT Result cuDevicePrimaryCtxRetain(void** context, int device) {
  static Function& called = function("cuDevicePrimaryCtxRetain");
  return call(called, [&](State& now) -> Result {
    if (device < 0 || device >= now.num_devices) {
      return kInvalidDevice;
    }
    *context = context_of_device(device);
    return kSuccess;
  });
}

STRICT Result cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }

STRICT Result cuCtxPushCurrent_v2(void* context) {
  static Function& called = function("cuCtxPushCurrent");
  return call(called, [&](State&) -> Result {
    contexts.push_back(device_of_context(context));
    return kSuccess;
  });
}

STRICT Result cuCtxPopCurrent_v2(void** context) {
  if (contexts.empty()) {
    return kInvalidContext;
  }
  if (context != nullptr) {
    *context = context_of_device(contexts.back());
  }
  contexts.pop_back();
  return kSuccess;
}

STRICT Result cuCtxSetCurrent(void* context) {
  if (!contexts.empty()) {
    contexts.pop_back();
  }
  if (context != nullptr) {
    contexts.push_back(device_of_context(context));
  }
  return kSuccess;
}

STRICT Result cuCtxGetCurrent(void** context) {
  *context = contexts.empty() ? nullptr : context_of_device(contexts.back());
  return kSuccess;
}

STRICT Result cuCtxGetDevice(int* device) {
  if (contexts.empty()) {
    return kInvalidContext;
  }
  *device = contexts.back();
  return kSuccess;
}

STRICT Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  static Function& called = function("cuMemGetInfo");
  return call(called, [&](State& now) -> Result {
    if (current_device() < 0) {
      return kInvalidContext;
    }
    *free = free_bytes(now, current_device());
    *total = now.total;
    return kSuccess;
  });
}

STRICT Result cuGetProcAddress_v2(const char* name, void** found, int, U64, void*) {
  Dl_info own;
  const bool known = dladdr(reinterpret_cast<void*>(&cuInit), &own) != 0;
  void* library = known ? dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  *found = dlsym(library != nullptr ? library : RTLD_DEFAULT, name);
  return *found != nullptr ? kSuccess : kNotSupported;
}
