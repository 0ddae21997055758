#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>

#include "fallback.hpp"
#include "registration.hpp"

namespace sim {
namespace {

std::vector<std::string>& registered() {
  static auto& names = *new std::vector<std::string>;
  return names;
}

bool has_kernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
  return op.hasKernelForDispatchKey(key);
}

bool composite_hides_fallback(const c10::OperatorHandle& op) {
  using Key = c10::DispatchKey;
  return has_kernel(op, Key::CPU) && !has_kernel(op, Key::PrivateUse1) &&
         (has_kernel(op, Key::CompositeExplicitAutograd) ||
          has_kernel(op, Key::CompositeImplicitAutograd));
}

}  // namespace

void register_ops_with_composites() {
  // A registration lasts as long as its library does.
  static auto& library = *new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !composite_hides_fallback(*op)) continue;
    const std::string full_name = c10::toString(name);
    library.impl(full_name.c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&run_op>());
    registered().push_back(full_name);
  }
}

std::vector<std::string> ops_with_composites() { return registered(); }

}  // namespace sim
