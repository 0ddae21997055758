#include "argument_checks.hpp"

#include <ATen/core/Tensor.h>

#include "settings.hpp"
#include "shadow.hpp"
#include "streams.hpp"

namespace sim {
namespace {

using at::Tensor;

void check_same_device(const OpFacts& facts, const Tensor& tensor, int device) {
  if (is_on_device(tensor)) {
    TORCH_CHECK(tensor.device().index() == device,
                "Expected all tensors to be on the same device, but found at least two "
                "devices, sim:",
                device, " and ", tensor.device(), "! (when running ", facts.name, ")");
    return;
  }
  const bool may_be_on_host = tensor.dim() == 0 || facts.takes_host_tensors;
  TORCH_CHECK(may_be_on_host,
              "Expected all tensors to be on the same device, but found at least two "
              "devices, sim:",
              device, " and ", tensor.device(), "! (when running ", facts.name, ")");
}

}  // namespace

void check_layout(const std::string& op_name, const Tensor& tensor) {
  const char* refused = nullptr;
  if (tensor.is_nested()) {
    refused = "Nested";
  } else if (tensor.is_quantized()) {
    refused = "Quantized";
  }
  TORCH_CHECK_NOT_IMPLEMENTED(refused == nullptr && tensor.layout() == c10::kStrided,
                              "the simulated device does not run ", op_name,
                              " on a tensor of layout ",
                              refused == nullptr ? "" : refused, tensor.layout());
}

void check_dtype(const std::string& op_name, c10::ScalarType dtype) {
  TORCH_CHECK_NOT_IMPLEMENTED(dtype != c10::kBFloat16 || settings().bf16,
                              "this simulated device does not run ", op_name,
                              " on BFloat16: its setting bf16 is off");
}

int device_of_arguments(const OpFacts& facts, c10::ArrayRef<c10::IValue> arguments) {
  int device = -1;
  bool has_host_tensor = false;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const Tensor& tensor) {
      if (!tensor.defined()) return;
      check_layout(facts.name, tensor);
      if (!is_on_device(tensor)) {
        has_host_tensor |= tensor.dim() > 0;
        return;
      }
      check_dtype(facts.name, tensor.scalar_type());
      if (device < 0) device = tensor.device().index();
      check_same_device(facts, tensor, device);
    });
  }
  if (device >= 0 && has_host_tensor) {
    for (const c10::IValue& argument : arguments) {
      for_each_tensor(argument, [&](const Tensor& tensor) {
        if (tensor.defined()) check_same_device(facts, tensor, device);
      });
    }
  }
  for (const c10::IValue& argument : arguments) {
    if (device < 0 && argument.isDevice() &&
        argument.toDevice().type() == c10::DeviceType::PrivateUse1) {
      device = argument.toDevice().index();
    }
  }
  return device < 0 ? current_device() : device;
}

}  // namespace sim
