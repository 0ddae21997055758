#include "shadow.hpp"

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "device_memory.hpp"

namespace sim {
namespace {

using at::Tensor;

void* address_of(const Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl()->mutable_data();
}

}  // namespace

Tensor view_at(const Tensor& like, void* address, std::size_t num_bytes) {
  // The allocator of the CPU lets an op grow what it is given as `out=`.
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), num_bytes,
      c10::DataPtr(address, c10::Device(c10::kCPU)), c10::GetAllocator(c10::kCPU),
      /*resizable=*/true));
  Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
  c10::TensorImpl* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) view._set_conj(true);
  if (like.is_neg()) view._set_neg(true);
  return view;
}

Tensor shadow_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  void* address = address_of(tensor);
  if (address != nullptr) address = device_to_shadow(tensor.device().index(), address);
  return view_at(tensor, address, tensor.storage().nbytes());
}

Tensor unowned_view_of(const Tensor& tensor) {
  return view_at(tensor, address_of(tensor), tensor.storage().nbytes());
}

void for_each_tensor(const c10::IValue& value,
                     const std::function<void(const Tensor&)>& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorList()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorList()) {
      if (tensor && tensor->defined()) visit(*tensor);
    }
  }
}

c10::IValue map_tensors(const c10::IValue& value,
                        const std::function<Tensor(const Tensor&)>& replace) {
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> tensors;
    for (const Tensor& tensor : value.toTensorList())
      tensors.push_back(replace(tensor));
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> tensors;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorList()) {
      const bool is_given = tensor && tensor->defined();
      tensors.push_back(is_given ? std::optional(replace(*tensor)) : std::nullopt);
    }
    return tensors;
  }
  return value;
}

}  // namespace sim
