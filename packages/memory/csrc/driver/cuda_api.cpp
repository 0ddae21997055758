#include "cuda_api.hpp"

#include <dlfcn.h>

#include <map>
#include <mutex>

#include "../error.hpp"

namespace drivetrain::cuda {

namespace {

class Library {
 public:
  explicit Library(const std::string& name) : name_(name) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) {
      throw DriverError("there is no CUDA driver here: " + std::string(dlerror()));
    }
  }

  template <class Function>
  void find(Function& function, const char* symbol) const {
    void* found = dlsym(handle_, symbol);
    if (found == nullptr) {
      throw DriverError("the CUDA driver " + name_ + " is too old: it has no " +
                        symbol);
    }
    function = reinterpret_cast<Function>(found);
  }

  template <class Function>
  void look_for(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(dlsym(handle_, symbol));
  }

 private:
  std::string name_;
  // Never closed: what the driver keeps of a process ends with the process.
  void* handle_ = nullptr;
};

Api find_all(const std::string& name) {
  const Library library(name);
  Api api{};
#define FIND(function) library.find(api.function, #function)
  FIND(cuInit);
  FIND(cuGetErrorName);
  FIND(cuDeviceGet);
  FIND(cuDeviceGetCount);
  FIND(cuDeviceGetAttribute);
  FIND(cuDeviceTotalMem_v2);
  FIND(cuDeviceCanAccessPeer);
  FIND(cuDevicePrimaryCtxRetain);
  FIND(cuCtxPushCurrent_v2);
  FIND(cuCtxPopCurrent_v2);
  FIND(cuCtxSynchronize);
  FIND(cuThreadExchangeStreamCaptureMode);
  FIND(cuMemGetInfo_v2);
  FIND(cuMemGetAllocationGranularity);
  FIND(cuMemAddressReserve);
  FIND(cuMemAddressFree);
  FIND(cuMemCreate);
  FIND(cuMemRelease);
  FIND(cuMemMap);
  FIND(cuMemUnmap);
  FIND(cuMemSetAccess);
  library.look_for(api.cuMemExportToShareableHandle, "cuMemExportToShareableHandle");
  library.look_for(api.cuMemImportFromShareableHandle,
                   "cuMemImportFromShareableHandle");
  FIND(cuMemAllocHost_v2);
  FIND(cuMemFreeHost);
  FIND(cuMemcpyDtoH_v2);
  FIND(cuMemcpyHtoD_v2);
  FIND(cuEventCreate);
  FIND(cuEventDestroy_v2);
  FIND(cuEventRecord);
  FIND(cuEventQuery);
  FIND(cuEventSynchronize);
  FIND(cuStreamWaitEvent);
  FIND(cuStreamIsCapturing);
  FIND(cuStreamGetCtx);
#undef FIND
  api.check(api.cuInit(0), "cuInit");
  return api;
}

}  // namespace

void Api::check(Result result, const char* function) const {
  if (result == kSuccess) {
    return;
  }
  const char* name = nullptr;
  if (cuGetErrorName(result, &name) != kSuccess || name == nullptr) {
    name = "an unknown error";
  }
  const std::string text =
      std::string(function) + ": " + name + " (" + std::to_string(result) + ")";
  if (result == kOutOfMemory) {
    throw DeviceFull(text);
  }
  throw DriverError(text);
}

const Api& load_api(const std::string& library) {
  static std::mutex mutex;
  static std::map<std::string, Api> loaded;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = loaded.find(library);
  if (found != loaded.end()) {
    return found->second;
  }
  return loaded.emplace(library, find_all(library)).first->second;
}

}  // namespace drivetrain::cuda
