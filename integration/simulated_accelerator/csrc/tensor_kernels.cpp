// Kernels that make tensors or change what a tensor is a view of: the fallback needs
// tensors that exist.

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/TensorShape.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "allocator.hpp"
#include "argument_checks.hpp"
#include "counters.hpp"
#include "health.hpp"
#include "shadow.hpp"
#include "streams.hpp"

namespace sim {
namespace {

using at::Tensor;
using c10::IntArrayRef;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void check_empty(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::kStrided,
                              "the simulated device does not run aten::empty for a "
                              "tensor of layout ",
                              c10::layout_or_default(layout));
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory),
              "only tensors of the CPU can be pinned");
}

Tensor empty(IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
             std::optional<c10::Layout> layout, std::optional<c10::Device> device,
             std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  check_empty(layout, pin_memory);
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, allocator(), kKeys,
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides,
                     std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout> layout,
                     std::optional<c10::Device> device,
                     std::optional<bool> pin_memory) {
  check_empty(layout, pin_memory);
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

Tensor as_strided(const Tensor& self, IntArrayRef sizes, IntArrayRef strides,
                  std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

Tensor view(const Tensor& self, IntArrayRef sizes) {
  return at::native::view(self, sizes);
}

Tensor reshape_alias(const Tensor& self, IntArrayRef sizes, IntArrayRef strides) {
  return at::native::_reshape_alias(self, sizes, strides);
}

Tensor unfold(const Tensor& self, std::int64_t dim, std::int64_t size,
              std::int64_t step) {
  return at::native::unfold(self, dim, size, step);
}

const Tensor& resize(const Tensor& self, IntArrayRef sizes,
                     std::optional<c10::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(self.device());
  return at::native::resize_(self, sizes, format);
}

Tensor& set_storage_and_shape(Tensor& self, at::Storage storage, std::int64_t offset,
                              IntArrayRef sizes, IntArrayRef strides) {
  return at::cpu::set_(self, std::move(storage), offset, sizes, strides);
}

Tensor& set_storage(Tensor& self, at::Storage storage) {
  return at::native::set_(self, std::move(storage));
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return at::native::set_tensor_(self, source);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  const int device = self.device().index();
  check_launch(device);
  check_dtype("aten::_local_scalar_dense", self.scalar_type());
  ++counters().synchronous_ops;
  current_queue(device).synchronize();
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return at::native::_local_scalar_dense_cpu(shadow_of(self));
}

void record_stream(Tensor& self, c10::Stream stream) {
  allocator()->recordStream(self.storage().data_ptr(), stream);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", unfold);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage_and_shape);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  // It looks at where tensors lie, and waits for nothing.
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("record_stream", record_stream);
}

}  // namespace sim
