// Ops that torch has for accelerators alone, made of others, or run by another's
// kernel.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "fallback.hpp"

namespace sim {
namespace {

using at::Tensor;
using torch::jit::Stack;
using OptionalTensor = std::optional<Tensor>;

bool is_given(const OptionalTensor& tensor) { return tensor && tensor->defined(); }

const c10::OperatorHandle& handle_of(const char* name) {
  static auto& handles = *new std::map<std::string, c10::OperatorHandle>;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  auto found = handles.find(name);
  if (found == handles.end()) {
    const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
    found = handles.emplace(name, handle).first;
  }
  return found->second;
}

// The kernel of the CPU draws from the host's generator, in the stream's thread.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double probability,
                                          std::optional<bool> train) {
  if (train.has_value() && !*train) {
    return {input.clone(), at::ones_like(input, at::kBool)};
  }
  const double scale = probability == 1.0 ? 0.0 : 1.0 / (1.0 - probability);
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(1.0 - probability);
  return {input * mask * scale, mask};
}

// `math`, for there is no fused kernel.
std::int64_t fused_sdp_choice(const Tensor&, const Tensor&, const Tensor&,
                              const OptionalTensor&, double, bool,
                              std::optional<double>, bool) {
  return 0;
}

// The arguments are those of aten::convolution.
void convolution(const c10::OperatorHandle&, Stack* stack) {
  run_op(handle_of("aten::convolution"), stack);
}

// aten::convolution_backward wants the sizes of the bias after the weight.
void convolution_backward(const c10::OperatorHandle& op, Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const Tensor gradient = (*stack)[first].toTensor();
  const std::vector<std::int64_t> bias_sizes{gradient.size(1)};
  stack->insert(stack->begin() + static_cast<std::ptrdiff_t>(first) + 3,
                c10::IValue(bias_sizes));
  run_op(handle_of("aten::convolution_backward"), stack);
}

Tensor with_bias(const Tensor& gates, const OptionalTensor& bias) {
  return is_given(bias) ? gates + *bias : gates;
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates,
                                             const Tensor& hidden_gates,
                                             const Tensor& cx,
                                             const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
  const Tensor input = with_bias(input_gates, input_bias);
  const Tensor hidden = with_bias(hidden_gates, hidden_bias);
  const auto parts = (input + hidden).chunk(4, 1);
  const Tensor in_gate = at::sigmoid(parts[0]);
  const Tensor forget_gate = at::sigmoid(parts[1]);
  const Tensor cell_gate = at::tanh(parts[2]);
  const Tensor out_gate = at::sigmoid(parts[3]);
  const Tensor cy = forget_gate * cx + in_gate * cell_gate;
  const Tensor hy = out_gate * at::tanh(cy);
  return {hy, cy, at::cat({in_gate, forget_gate, cell_gate, out_gate}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(
    const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, const Tensor& cx,
    const Tensor& cy, const Tensor& workspace, bool has_bias) {
  if (!is_given(grad_hy) && !is_given(grad_cy)) return {};
  const auto gates = workspace.chunk(4, 1);
  const Tensor &in_gate = gates[0], &forget_gate = gates[1];
  const Tensor &cell_gate = gates[2], &out_gate = gates[3];
  const Tensor tanh_cy = at::tanh(cy);
  const Tensor dhy = is_given(grad_hy) ? *grad_hy : at::zeros_like(cx);
  Tensor dcy = dhy * out_gate * (1 - tanh_cy * tanh_cy);
  if (is_given(grad_cy)) dcy = dcy + *grad_cy;
  const Tensor grad_gates = at::cat({dcy * cell_gate * in_gate * (1 - in_gate),
                                     dcy * cx * forget_gate * (1 - forget_gate),
                                     dcy * in_gate * (1 - cell_gate * cell_gate),
                                     dhy * tanh_cy * out_gate * (1 - out_gate)},
                                    1);
  return {grad_gates, dcy * forget_gate, has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates,
                                    const Tensor& hidden_gates, const Tensor& hx,
                                    const OptionalTensor& input_bias,
                                    const OptionalTensor& hidden_bias) {
  const auto input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset_gate = at::sigmoid(input[0] + hidden[0]);
  const Tensor in_gate = at::sigmoid(input[1] + hidden[1]);
  const Tensor new_gate = at::tanh(input[2] + reset_gate * hidden[2]);
  const Tensor hy = new_gate + in_gate * (hx - new_gate);
  return {hy, at::cat({reset_gate, in_gate, new_gate, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(
    const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const Tensor &reset_gate = saved[0], &in_gate = saved[1], &new_gate = saved[2];
  const Tensor &hx = saved[3], &hidden_new = saved[4];
  const Tensor grad_in = grad_hy * (hx - new_gate) * in_gate * (1 - in_gate);
  const Tensor grad_new = grad_hy * (1 - in_gate) * (1 - new_gate * new_gate);
  const Tensor grad_reset = grad_new * hidden_new * reset_gate * (1 - reset_gate);
  const Tensor input = at::cat({grad_reset, grad_in, grad_new}, 1);
  const Tensor hidden = at::cat({grad_reset, grad_in, grad_new * reset_gate}, 1);
  return {input, hidden, grad_hy * in_gate, has_bias ? input.sum(0) : Tensor(),
          has_bias ? hidden.sum(0) : Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using torch::CppFunction;
  m.impl("native_dropout", native_dropout);
  m.impl("_fused_sdp_choice", fused_sdp_choice);
  m.impl("convolution_overrideable",
         CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable",
         CppFunction::makeFromBoxedFunction<&convolution_backward>());
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace sim
