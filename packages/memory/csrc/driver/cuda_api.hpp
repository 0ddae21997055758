// The part of the CUDA driver that the allocator calls, found when it is first needed,
// so that the library loads where there is no CUDA.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace drivetrain::cuda {

// As in cuda.h; `checks/check_cuda_abi.cpp` compares.
using Result = int;
using Device = int;
using Context = void*;
using StreamHandle = void*;
using EventHandle = void*;
using DevicePointer = unsigned long long;
using AllocationHandle = unsigned long long;

constexpr Result kSuccess = 0;
constexpr Result kOutOfMemory = 2;
constexpr Result kInvalidHandle = 400;
constexpr Result kNotReady = 600;
constexpr Result kCaptureImplicit = 906;
// All that say that a graph is being captured.
constexpr Result kFirstOfCapture = 900;
constexpr Result kLastOfCapture = 908;

constexpr int kVirtualMemorySupported = 102;
constexpr int kFileHandlesSupported = 103;
constexpr int kDirectRdmaSupported = 110;
constexpr int kPinned = 1;
constexpr int kOnDevice = 1;
constexpr int kFileHandle = 1;
constexpr int kReadWrite = 3;
constexpr int kMinimumGranularity = 0;
constexpr int kCaptureModeRelaxed = 2;
constexpr int kCaptureNone = 0;
constexpr unsigned kEventWithoutTiming = 2;

struct Location {
  int type;
  int id;
};

struct AllocationFlags {
  unsigned char compression;
  unsigned char direct_rdma;
  unsigned short usage;
  unsigned char reserved[4];
};

struct AllocationProperties {
  int type;
  int handle_types;
  Location location;
  void* win32;
  AllocationFlags flags;
};

struct AccessDescription {
  Location location;
  int flags;
};

// The functions, by their names in the driver.
struct Api {
  Result (*cuInit)(unsigned);
  Result (*cuGetErrorName)(Result, const char**);
  Result (*cuDeviceGet)(Device*, int);
  Result (*cuDeviceGetCount)(int*);
  Result (*cuDeviceGetAttribute)(int*, int, Device);
  Result (*cuDeviceTotalMem_v2)(std::size_t*, Device);
  Result (*cuDeviceCanAccessPeer)(int*, Device, Device);
  Result (*cuDevicePrimaryCtxRetain)(Context*, Device);
  Result (*cuCtxPushCurrent_v2)(Context);
  Result (*cuCtxPopCurrent_v2)(Context*);
  Result (*cuCtxSynchronize)();
  Result (*cuThreadExchangeStreamCaptureMode)(int*);
  Result (*cuMemGetInfo_v2)(std::size_t*, std::size_t*);
  Result (*cuMemGetAllocationGranularity)(std::size_t*, const AllocationProperties*,
                                          int);
  Result (*cuMemAddressReserve)(DevicePointer*, std::size_t, std::size_t, DevicePointer,
                                unsigned long long);
  Result (*cuMemAddressFree)(DevicePointer, std::size_t);
  Result (*cuMemCreate)(AllocationHandle*, std::size_t, const AllocationProperties*,
                        unsigned long long);
  Result (*cuMemRelease)(AllocationHandle);
  Result (*cuMemMap)(DevicePointer, std::size_t, std::size_t, AllocationHandle,
                     unsigned long long);
  Result (*cuMemUnmap)(DevicePointer, std::size_t);
  Result (*cuMemSetAccess)(DevicePointer, std::size_t, const AccessDescription*,
                           std::size_t);
  // Null in a driver that cannot.
  Result (*cuMemExportToShareableHandle)(void*, AllocationHandle, int,
                                         unsigned long long);
  Result (*cuMemImportFromShareableHandle)(AllocationHandle*, void*, int);
  Result (*cuMemAllocHost_v2)(void**, std::size_t);
  Result (*cuMemFreeHost)(void*);
  Result (*cuMemcpyDtoH_v2)(void*, DevicePointer, std::size_t);
  Result (*cuMemcpyHtoD_v2)(DevicePointer, const void*, std::size_t);
  Result (*cuEventCreate)(EventHandle*, unsigned);
  Result (*cuEventDestroy_v2)(EventHandle);
  Result (*cuEventRecord)(EventHandle, StreamHandle);
  Result (*cuEventQuery)(EventHandle);
  Result (*cuEventSynchronize)(EventHandle);
  Result (*cuStreamWaitEvent)(StreamHandle, EventHandle, unsigned);
  Result (*cuStreamIsCapturing)(StreamHandle, int*);
  Result (*cuStreamGetCtx)(StreamHandle, Context*);

  // Throws DriverError with the driver's name for what went wrong, DeviceFull where
  // that is lack of memory.
  void check(Result result, const char* function) const;
};

// Returns the functions of a driver library, loaded once for each name.
//
// Throws DriverError when there is no such library, or one that is too old.
const Api& load_api(const std::string& library);

}  // namespace drivetrain::cuda
