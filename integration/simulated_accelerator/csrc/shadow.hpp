#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <optional>

namespace sim {

inline bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

// A CPU tensor on the bytes of a tensor of the device, for the thread of a stream. It
// owns nothing, and has no Python object: dropping it never needs Python's lock.
at::Tensor shadow_of(const at::Tensor& tensor);

// Likewise for a CPU tensor, whose memory is not kept alive: that is up to its owner,
// as it is on a real device.
at::Tensor unowned_view_of(const at::Tensor& tensor);

// A CPU tensor like another one, on memory that it does not own.
at::Tensor view_at(const at::Tensor& like, void* address, std::size_t num_bytes);

// Calls a function with each tensor that a value holds.
void for_each_tensor(const c10::IValue& value,
                     const std::function<void(const at::Tensor&)>& visit);

// A value whose tensors are replaced.
c10::IValue map_tensors(const c10::IValue& value,
                        const std::function<at::Tensor(const at::Tensor&)>& replace);

}  // namespace sim
