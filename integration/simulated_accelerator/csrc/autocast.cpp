#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>
#include <unordered_set>

#include "registration.hpp"
#include "shadow.hpp"

namespace sim {
namespace {

using at::Tensor;
using Names = std::unordered_set<std::string>;
using torch::jit::Stack;

constexpr auto kType = c10::DeviceType::PrivateUse1;

// CPU's lists, which differ from CUDA's, so that results can be compared with it: these
// ops run in the lower precision, these in the widest of their arguments', and all
// others that CPU's autocast knows in fp32.
const Names& lower_precision_ops() {
  static const auto& names = *new Names{
      "aten::_addmm_activation",
      "aten::_convolution.deprecated",
      "aten::_native_multi_head_attention",
      "aten::addbmm",
      "aten::addmm",
      "aten::baddbmm",
      "aten::bmm",
      "aten::conv1d",
      "aten::conv1d.padding",
      "aten::conv2d",
      "aten::conv2d.padding",
      "aten::conv3d",
      "aten::conv3d.padding",
      "aten::conv_tbc",
      "aten::conv_transpose1d",
      "aten::conv_transpose2d.input",
      "aten::conv_transpose3d.input",
      "aten::linalg_vecdot",
      "aten::linear",
      "aten::matmul",
      "aten::mkldnn_rnn_layer",
      "aten::mm",
      "aten::prelu",
      "aten::scaled_dot_product_attention",
  };
  return names;
}

const Names& promoted_ops() {
  static const auto& names = *new Names{"aten::cat", "aten::index_copy", "aten::stack"};
  return names;
}

std::vector<std::string>& registered() {
  static auto& names = *new std::vector<std::string>;
  return names;
}

c10::ArrayRef<c10::IValue> arguments_of(const c10::OperatorHandle& op,
                                        const Stack& stack) {
  const std::size_t count = op.schema().arguments().size();
  return c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - count, count);
}

// The type that the arguments are promoted to.
c10::ScalarType widest(c10::ArrayRef<c10::IValue> arguments) {
  c10::ScalarType type = at::autocast::get_lower_precision_fp_from_device_type(kType);
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const Tensor& tensor) {
      type = at::autocast::prioritize(type, tensor, kType);
    });
  }
  return type;
}

void run_casted(const c10::OperatorHandle& op, Stack* stack, c10::ScalarType type) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(kType));
  const std::size_t count = op.schema().arguments().size();
  for (std::size_t i = stack->size() - count; i < stack->size(); ++i) {
    (*stack)[i] = map_tensors((*stack)[i], [&](const Tensor& tensor) {
      return at::autocast::cached_cast(type, tensor, kType);
    });
  }
  op.callBoxed(stack);
}

void run_in_lower_precision(const c10::OperatorHandle& op, Stack* stack) {
  run_casted(op, stack, at::autocast::get_lower_precision_fp_from_device_type(kType));
}

void run_in_fp32(const c10::OperatorHandle& op, Stack* stack) {
  run_casted(op, stack, at::kFloat);
}

void run_in_widest(const c10::OperatorHandle& op, Stack* stack) {
  run_casted(op, stack, widest(arguments_of(op, *stack)));
}

torch::CppFunction kernel_of(const std::string& name) {
  using torch::CppFunction;
  if (lower_precision_ops().count(name) > 0) {
    return CppFunction::makeFromBoxedFunction<&run_in_lower_precision>();
  }
  if (promoted_ops().count(name) > 0) {
    return CppFunction::makeFromBoxedFunction<&run_in_widest>();
  }
  return CppFunction::makeFromBoxedFunction<&run_in_fp32>();
}

}  // namespace

void register_autocast() {
  static auto& library =
      *new torch::Library(torch::Library::IMPL, "aten",
                          c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU)) continue;
    const std::string full_name = c10::toString(name);
    library.impl(full_name.c_str(), kernel_of(full_name));
    registered().push_back(full_name);
  }
}

std::vector<std::string> autocast_ops() { return registered(); }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

}  // namespace sim
