#include "fallback.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/resize_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "allocator.hpp"
#include "argument_checks.hpp"
#include "counters.hpp"
#include "health.hpp"
#include "op_call.hpp"
#include "settings.hpp"
#include "shadow.hpp"
#include "shape_cache.hpp"
#include "streams.hpp"

namespace sim {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;
using Arguments = c10::ArrayRef<IValue>;

Tensor empty_on_device(const OutputRecord& like, int device) {
  c10::DeviceGuard guard(
      c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)));
  return at::detail::empty_strided_generic(
      like.sizes, like.strides, allocator(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), like.dtype);
}

Tensor nth_tensor(Arguments arguments, int index) {
  Tensor found;
  int count = 0;
  for (const IValue& argument : arguments) {
    for_each_tensor(argument, [&](const Tensor& tensor) {
      if (count++ == index) found = tensor;
    });
  }
  return found;
}

// The index of the tensor argument that a result of the CPU kernel shares memory with.
int alias_of(const Stack& arguments, const Tensor& result) {
  if (!result.has_storage() || result.storage().nbytes() == 0) return -1;
  int found = -1;
  int count = 0;
  for (const IValue& argument : arguments) {
    for_each_tensor(argument, [&](const Tensor& tensor) {
      const bool is_same = tensor.defined() && result.is_alias_of(tensor) &&
                           result.dtype() == tensor.dtype();
      if (is_same) found = count;
      ++count;
    });
  }
  return found;
}

OutputRecord record_output(const std::string& op_name, const Stack& arguments,
                           const Tensor& result) {
  if (!result.defined()) return {};
  check_layout(op_name, result);
  check_dtype(op_name, result.scalar_type());
  return {.defined = true,
          .sizes = result.sizes().vec(),
          .strides = result.strides().vec(),
          .dtype = result.scalar_type(),
          .alias_of = alias_of(arguments, result),
          .storage_offset = result.storage_offset()};
}

OpRecord make_record(const OpCall& call, Arguments arguments, const Stack& results) {
  OpRecord record;
  for (std::size_t i = 0; i < results.size(); ++i) {
    ResultRecord result{.is_list = results[i].isTensorList()};
    if (call.facts->written_argument_of_result[i] < 0) {
      for_each_tensor(results[i], [&](const Tensor& tensor) {
        result.outputs.push_back(
            record_output(call.facts->name, call.arguments, tensor));
      });
    }
    record.results.push_back(std::move(result));
  }
  for (int index : call.facts->written_arguments) {
    const IValue& before = arguments[static_cast<std::size_t>(index)];
    const IValue& after = call.arguments[static_cast<std::size_t>(index)];
    if (!before.isTensor() || !is_on_device(before.toTensor())) continue;
    const Tensor tensor = after.toTensor();
    if (tensor.sizes() != before.toTensor().sizes() ||
        tensor.strides() != before.toTensor().strides()) {
      record.resized.push_back({.index = index,
                                .sizes = tensor.sizes().vec(),
                                .strides = tensor.strides().vec()});
    }
  }
  return record;
}

void resize_arguments(const OpRecord& record, Arguments arguments) {
  for (const ResizedArgument& resized : record.resized) {
    const Tensor& tensor =
        arguments[static_cast<std::size_t>(resized.index)].toTensor();
    at::native::resize_(tensor, resized.sizes, std::nullopt);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(resized.sizes, resized.strides);
  }
}

// Allocates the results of a call, and notes where the CPU's go.
class Results {
 public:
  Results(OpCall& call, Arguments arguments, int device)
      : call_(call), arguments_(arguments), device_(device) {}

  Stack make(const OpRecord& record) {
    Stack made;
    for (std::size_t i = 0; i < record.results.size(); ++i) {
      const int written = call_.facts->written_argument_of_result[i];
      if (written >= 0) {
        made.push_back(arguments_[static_cast<std::size_t>(written)]);
      } else {
        made.push_back(make_result(record.results[i], i));
      }
    }
    return made;
  }

 private:
  IValue make_result(const ResultRecord& record, std::size_t index) {
    if (!record.is_list) {
      return record.outputs.empty() ? IValue()
                                    : make_output(record.outputs[0], index, 0);
    }
    c10::List<Tensor> list;
    for (std::size_t i = 0; i < record.outputs.size(); ++i) {
      list.push_back(make_output(record.outputs[i], index, i));
    }
    return list;
  }

  Tensor make_output(const OutputRecord& record, std::size_t result,
                     std::size_t index_in_list) {
    if (!record.defined) return {};
    if (record.alias_of >= 0) {
      return at::as_strided(nth_tensor(arguments_, record.alias_of), record.sizes,
                            record.strides, record.storage_offset);
    }
    Tensor output = empty_on_device(record, device_);
    call_.destinations.push_back({result, index_in_list, shadow_of(output)});
    return output;
  }

  OpCall& call_;
  const Arguments arguments_;
  const int device_;
};

// Results that are no tensors (a number, a flag) are the CPU's.
void take_plain_results(const Stack& cpu, Stack& made) {
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    if (!cpu[i].isTensor() && !cpu[i].isTensorList()) made[i] = cpu[i];
  }
}

// Tells the warnings of a kernel, but for that of a result which has its size at the
// end.
void tell(const std::vector<c10::Warning>& warnings, const OpRecord& record) {
  for (const c10::Warning& warning : warnings) {
    const bool is_of_resizing =
        warning.msg().find("one or more elements was resized") != std::string::npos;
    if (!is_of_resizing || !record.resized.empty()) c10::warn(warning);
  }
}

// Runs a call now, in this thread, once the stream has come so far.
Stack run_at_once(const std::shared_ptr<OpCall>& call, Arguments arguments, int device,
                  const std::optional<std::string>& key) {
  StreamQueue& queue = current_queue(device);
  TORCH_CHECK(!queue.is_capturing(), call->facts->name,
              " cannot be captured: it waits for the device, or it runs with these "
              "shapes for the first time. Run the graph's code once before capture");
  ++call->facts->num_synchronous;
  ++counters().synchronous_ops;
  queue.synchronize();
  sleep_us(delays().op_us);
  std::vector<c10::Warning> warnings;
  Stack cpu = call->run(call->drawn_arguments(), warnings);
  OpRecord record = make_record(*call, arguments, cpu);
  tell(warnings, record);
  resize_arguments(record, arguments);
  Stack made = Results(*call, arguments, device).make(record);
  take_plain_results(cpu, made);
  // Queued, because what was allocated may be poisoned first.
  std::vector<std::pair<Tensor, Tensor>> grown;
  for (const ResizedArgument& resized : record.resized) {
    const auto index = static_cast<std::size_t>(resized.index);
    grown.emplace_back(shadow_of(arguments[index].toTensor()),
                       call->arguments[index].toTensor());
  }
  queue.push([call, cpu = std::move(cpu), grown = std::move(grown)] {
    copy_results(cpu, call->destinations);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (const auto& [shadow, tensor] : grown) shadow.copy_(tensor);
  });
  const bool is_fixed = key && !call->facts->needs_data;
  if (is_fixed) keep_record(*key, std::move(record));
  return made;
}

Stack run_queued(const std::shared_ptr<OpCall>& call, Arguments arguments, int device,
                 const OpRecord& record) {
  ++call->facts->num_asynchronous;
  ++counters().asynchronous_ops;
  Stack made = Results(*call, arguments, device).make(record);
  current_queue(device).push_made([call] { return call->make_work(); });
  return made;
}

// The result's shape depends on how many of them are true.
bool has_mask_index(const OpFacts& facts, Arguments arguments) {
  if (!facts.takes_host_tensors || arguments.size() < 2) return false;
  bool found = false;
  for_each_tensor(arguments[1], [&](const Tensor& tensor) {
    found |= tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
  });
  return found;
}

void check_runnable(const OpFacts& facts) {
  TORCH_CHECK_NOT_IMPLEMENTED(facts.has_cpu_kernel, "the simulated device cannot run ",
                              facts.name, " on a tensor of layout Strided: it runs ",
                              "kernels of the CPU, which has none for it");
  TORCH_CHECK_NOT_IMPLEMENTED(!facts.has_hidden_randomness,
                              "the simulated device cannot run ", facts.name,
                              ": it draws random numbers of the host");
}

}  // namespace

void run_op(const c10::OperatorHandle& op, Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  OpFacts& facts = facts_of(op);
  check_runnable(facts);
  const std::size_t num_arguments = op.schema().arguments().size();
  const Arguments arguments =
      Arguments(*stack).slice(stack->size() - num_arguments, num_arguments);
  const int device = device_of_arguments(facts, arguments);
  check_launch(device);
  const auto key = shape_key(facts.id, arguments, facts.floats_matter);
  const bool at_once = facts.needs_data || !key || has_mask_index(facts, arguments);
  const auto record = at_once ? nullptr : find_record(*key);
  if (record) resize_arguments(*record, arguments);
  const auto call = make_call(op, facts, arguments, device);
  Stack results =
      record ? run_queued(call, arguments, device, *record)
             : run_at_once(call, arguments, device, at_once ? std::nullopt : key);
  torch::jit::drop(*stack, num_arguments);
  for (IValue& result : results) stack->push_back(std::move(result));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_op>());
}

}  // namespace sim
