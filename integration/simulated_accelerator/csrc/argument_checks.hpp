#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "op_facts.hpp"

namespace sim {

// Returns the device that an op runs on, by its arguments; the current one if none has
// one. Raises for tensors of several devices, and for what the device does not have.
int device_of_arguments(const OpFacts& facts, c10::ArrayRef<c10::IValue> arguments);

// Raises NotImplementedError for a tensor whose layout the device does not have.
void check_layout(const std::string& op_name, const at::Tensor& tensor);
// Raises NotImplementedError for bf16 on a device without it.
void check_dtype(const std::string& op_name, c10::ScalarType dtype);

}  // namespace sim
