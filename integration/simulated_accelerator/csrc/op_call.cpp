#include "op_call.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "settings.hpp"
#include "shadow.hpp"

namespace sim {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

void use_threads(int num_threads) {
  if (at::get_num_threads() != num_threads) at::set_num_threads(num_threads);
}

// Keeps warnings instead of telling them.
class WarningList final : public c10::WarningHandler {
 public:
  explicit WarningList(std::vector<c10::Warning>& warnings) : warnings_(warnings) {}
  void process(const c10::Warning& warning) override { warnings_.push_back(warning); }

 private:
  std::vector<c10::Warning>& warnings_;
};

// A structured kernel may give a result another size for a moment. Its memory is then
// the host's, and what it holds at the end belongs to the device. Of a tensor that owns
// its memory what was there before is gone by then, and nothing is missing.
class MovedStorages {
 public:
  MovedStorages(const OpFacts& facts, const Stack& stack) {
    for (int index : facts.written_arguments) {
      for_each_tensor(
          stack[static_cast<std::size_t>(index)], [&](const Tensor& tensor) {
            if (!tensor.defined()) return;
            const c10::DataPtr& data = tensor.storage().data_ptr();
            if (data.get_context() != nullptr) return;
            before_.push_back({tensor, data.get(), tensor.storage().nbytes()});
          });
    }
  }

  void copy_back() const {
    for (const Written& it : before_) {
      const bool has_moved = it.tensor.storage().data_ptr().get() != it.address;
      const bool fits =
          at::detail::computeStorageNbytes(
              it.tensor.sizes(), it.tensor.strides(), it.tensor.dtype().itemsize(),
              static_cast<std::size_t>(it.tensor.storage_offset())) <= it.num_bytes;
      if (!has_moved || it.address == nullptr || !fits) continue;
      view_at(it.tensor, it.address, it.num_bytes).copy_(it.tensor);
    }
  }

 private:
  struct Written {
    Tensor tensor;
    void* address;
    std::size_t num_bytes;
  };
  std::vector<Written> before_;
};

Tensor cloned(const Tensor& tensor) {
  Tensor clone = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    clone.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return clone;
}

IValue on_host(const IValue& argument) {
  if (argument.isDevice()) return c10::Device(c10::kCPU);
  return map_tensors(argument, [](const Tensor& tensor) -> Tensor {
    if (!tensor.defined()) return tensor;
    return is_on_device(tensor) ? shadow_of(tensor) : cloned(tensor);
  });
}

}  // namespace

void copy_results(const Stack& results, const std::vector<Destination>& destinations) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const Destination& destination : destinations) {
    const IValue& result = results[destination.result];
    if (result.isTensor()) {
      destination.shadow.copy_(result.toTensor());
    } else {
      const Tensor element = result.toTensorList()[destination.index_in_list];
      destination.shadow.copy_(element);
    }
  }
}

Stack OpCall::drawn_arguments() const {
  Stack stack = arguments;
  if (generator) {
    stack[static_cast<std::size_t>(facts->generator_argument)] =
        static_cast<SimGenerator*>(generator.get())->draw();
  }
  return stack;
}

Stack OpCall::run(Stack stack, std::vector<c10::Warning>& warnings) const {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  WarningList handler(warnings);
  c10::WarningUtils::WarningHandlerGuard guard(&handler);
  MovedStorages written(*facts, stack);
  op.callBoxed(stack);
  written.copy_back();
  return stack;
}

// Gives the kernel results of its own, which are copied once the delay is over.
Stack OpCall::run_into_new_results(std::vector<c10::Warning>& warnings) const {
  Stack stack = arguments;
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (int index : facts->written_arguments) {
    IValue& argument = stack[static_cast<std::size_t>(index)];
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const Tensor shadow = argument.toTensor();
    const Tensor result =
        at::empty_strided(shadow.sizes(), shadow.strides(), shadow.options());
    // A kernel may leave a part of it as it was.
    result.copy_(shadow);
    argument = result;
    copies.emplace_back(shadow, result);
  }
  Stack results = run(std::move(stack), warnings);
  sleep_us(delays().op_us);
  for (const auto& [shadow, result] : copies) shadow.copy_(result);
  return results;
}

void OpCall::run_slowly() const {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  // A first call, which was not queued, has told the warnings.
  std::vector<c10::Warning> ignored;
  // A missing wait shows best if an op reads early and writes late.
  if (delays().op_us > 0 && facts->writes_results_alone) {
    copy_results(run_into_new_results(ignored), destinations);
    return;
  }
  sleep_us(delays().op_us);
  copy_results(run(arguments, ignored), destinations);
}

Work OpCall::make_work() const {
  // A copy of its own for each run: the kernel consumes its arguments.
  OpCall drawn = *this;
  drawn.arguments = drawn_arguments();
  return [call = std::move(drawn)] {
    use_threads(call.num_threads);
    try {
      call.run_slowly();
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "asynchronous error in ", call.facts->name, ": ",
                  error.what_without_backtrace());
    }
  };
}

std::shared_ptr<OpCall> make_call(const c10::OperatorHandle& op, OpFacts& facts,
                                  c10::ArrayRef<IValue> arguments, int device) {
  auto call = std::make_shared<OpCall>(op);
  call->facts = &facts;
  call->num_threads = at::get_num_threads();
  call->arguments.reserve(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const IValue& argument = arguments[i];
    if (static_cast<int>(i) == facts.generator_argument) {
      std::optional<at::Generator> given;
      if (argument.isGenerator()) given = argument.toGenerator();
      call->generator = c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(
          &generator_of(given, device));
      call->arguments.emplace_back();
    } else {
      call->arguments.push_back(on_host(argument));
    }
  }
  return call;
}

}  // namespace sim
