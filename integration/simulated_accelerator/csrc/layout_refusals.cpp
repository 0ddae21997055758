// Tensors of layouts that the device does not have.

#include <ATen/core/stack.h>
#include <torch/library.h>

#include <string>

namespace sim {
namespace {

template <c10::DispatchKey Key>
void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  std::string layout = c10::toString(Key);
  layout.erase(layout.find("PrivateUse1"));
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the simulated device does not run ",
                              op.schema().operator_name(), " on a tensor of layout ",
                              layout);
}

template <c10::DispatchKey Key>
void register_refusal(torch::Library& m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse<Key>>());
}

}  // namespace

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  register_refusal<c10::DispatchKey::SparsePrivateUse1>(m);
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  register_refusal<c10::DispatchKey::SparseCsrPrivateUse1>(m);
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  register_refusal<c10::DispatchKey::QuantizedPrivateUse1>(m);
}
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  register_refusal<c10::DispatchKey::NestedTensorPrivateUse1>(m);
}

}  // namespace sim
