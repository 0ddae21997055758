#include "op_facts.hpp"

#include <ATen/core/enum_tag.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace sim {
namespace {

using Names = std::unordered_set<std::string>;

// Beside those that torch tags.
const Names& ops_that_need_data() {
  static const auto& names = *new Names{
      "aten::_linalg_check_errors",
      "aten::_local_scalar_dense",
      "aten::_unique",
      "aten::_unique2",
      "aten::allclose",
      "aten::bincount",
      "aten::equal",
      "aten::histc",
      "aten::is_nonzero",
      "aten::masked_select",
      "aten::nonzero",
      "aten::repeat_interleave",
      "aten::unique_consecutive",
      "aten::unique_dim",
      "aten::unique_dim_consecutive",
  };
  return names;
}

const Names& ops_that_take_host_tensors() {
  static const auto& names = *new Names{
      "aten::_index_put_impl_",
      "aten::_pack_padded_sequence",
      "aten::_unsafe_index",
      "aten::_unsafe_index_put",
      "aten::_unsafe_masked_index",
      "aten::_unsafe_masked_index_put_accumulate",
      "aten::index",
      "aten::index_put",
      "aten::index_put_",
  };
  return names;
}

struct Facts {
  std::mutex mutex;
  std::unordered_map<const c10::FunctionSchema*, OpFacts*> by_schema;
  // They stay: queued work refers to them.
  std::vector<std::unique_ptr<OpFacts>> facts;
};

Facts& all() {
  static Facts& instance = *new Facts;
  return instance;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

int written_argument_of(const c10::FunctionSchema& schema,
                        const c10::Argument& result) {
  if (result.alias_info() == nullptr) return -1;
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (is_written(arguments[i]) &&
        arguments[i].alias_info()->beforeSets() == result.alias_info()->beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::unique_ptr<OpFacts> find_facts(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  auto facts = std::make_unique<OpFacts>();
  facts->operator_name = schema.operator_name();
  facts->name = c10::toString(schema.operator_name());
  facts->has_cpu_kernel = op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  facts->needs_data = ops_that_need_data().count(schema.name()) > 0 ||
                      op.hasTag(at::Tag::dynamic_output_shape) ||
                      op.hasTag(at::Tag::data_dependent_output);
  facts->takes_host_tensors = ops_that_take_host_tensors().count(schema.name()) > 0;
  facts->floats_matter =
      schema.name() == "aten::arange" || schema.name() == "aten::range";
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const int index = static_cast<int>(i);
    if (argument.type()->str().find("Generator") != std::string::npos) {
      facts->generator_argument = index;
    }
    if (!is_written(argument)) continue;
    facts->written_arguments.push_back(index);
    const bool is_tensor = argument.type()->isSubtypeOf(*c10::TensorType::get());
    facts->writes_results_alone &= argument.is_out() && is_tensor;
  }
  for (const c10::Argument& result : schema.returns()) {
    facts->written_argument_of_result.push_back(written_argument_of(schema, result));
  }
  facts->has_hidden_randomness =
      facts->generator_argument < 0 && op.hasTag(at::Tag::nondeterministic_seeded);
  return facts;
}

}  // namespace

OpFacts& facts_of(const c10::OperatorHandle& op) {
  std::lock_guard lock(all().mutex);
  OpFacts*& facts = all().by_schema[&op.schema()];
  if (facts == nullptr || facts->operator_name != op.operator_name()) {
    all().facts.push_back(find_facts(op));
    facts = all().facts.back().get();
    facts->id = static_cast<std::int64_t>(all().facts.size());
  }
  return *facts;
}

std::map<std::string, std::int64_t> op_counts() {
  std::lock_guard lock(all().mutex);
  std::map<std::string, std::int64_t> counts;
  for (const auto& facts : all().facts) {
    const std::int64_t count = facts->num_asynchronous + facts->num_synchronous;
    if (count > 0) counts[facts->name] += count;
  }
  return counts;
}

}  // namespace sim
