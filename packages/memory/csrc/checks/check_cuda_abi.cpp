// Compares what `driver/cuda_api.hpp` says of the CUDA driver with its own header. It
// compiles if they agree.

#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "../driver/cuda_api.hpp"

namespace {

namespace ours = drivetrain::cuda;

#define SAME_FIELD(Ours, field, Theirs, theirs)                            \
  static_assert(offsetof(ours::Ours, field) == offsetof(Theirs, theirs) && \
                sizeof(ours::Ours::field) == sizeof(Theirs::theirs))

static_assert(sizeof(ours::AllocationProperties) == sizeof(CUmemAllocationProp));
SAME_FIELD(AllocationProperties, type, CUmemAllocationProp, type);
SAME_FIELD(AllocationProperties, handle_types, CUmemAllocationProp,
           requestedHandleTypes);
SAME_FIELD(AllocationProperties, location, CUmemAllocationProp, location);
SAME_FIELD(AllocationProperties, flags, CUmemAllocationProp, allocFlags);
static_assert(offsetof(ours::AllocationFlags, direct_rdma) ==
              offsetof(decltype(CUmemAllocationProp::allocFlags),
                       gpuDirectRDMACapable));
static_assert(sizeof(ours::AccessDescription) == sizeof(CUmemAccessDesc));
SAME_FIELD(AccessDescription, location, CUmemAccessDesc, location);
SAME_FIELD(AccessDescription, flags, CUmemAccessDesc, flags);
SAME_FIELD(Location, type, CUmemLocation, type);
SAME_FIELD(Location, id, CUmemLocation, id);

static_assert(ours::kSuccess == CUDA_SUCCESS);
static_assert(ours::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(ours::kInvalidHandle == CUDA_ERROR_INVALID_HANDLE);
static_assert(ours::kNotReady == CUDA_ERROR_NOT_READY);
static_assert(ours::kCaptureImplicit == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
static_assert(ours::kFirstOfCapture == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(ours::kLastOfCapture == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
static_assert(ours::kVirtualMemorySupported ==
              CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(ours::kDirectRdmaSupported ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
static_assert(ours::kPinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(ours::kOnDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(ours::kReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(ours::kMinimumGranularity == CU_MEM_ALLOC_GRANULARITY_MINIMUM);
static_assert(ours::kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(ours::kCaptureNone == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(ours::kEventWithoutTiming == CU_EVENT_DISABLE_TIMING);
static_assert(sizeof(ours::DevicePointer) == sizeof(CUdeviceptr));
static_assert(sizeof(ours::AllocationHandle) == sizeof(CUmemGenericAllocationHandle));
static_assert(sizeof(ours::Device) == sizeof(CUdevice));

}  // namespace

int main() { return 0; }
