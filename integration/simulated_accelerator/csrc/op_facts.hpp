#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sim {

// What the schema and the tags of an op say of it; found once for an op.
struct OpFacts {
  // A number of its own: an op of a library that is gone may leave its address to
  // another.
  std::int64_t id = 0;
  c10::OperatorName operator_name{"", ""};
  std::string name;
  bool has_cpu_kernel = false;
  // The shapes of its results depend on the data, or it returns a value to the host.
  bool needs_data = false;
  // It draws random numbers without a generator among its arguments.
  bool has_hidden_randomness = false;
  // Its host arguments may have dimensions (indices, lengths).
  bool takes_host_tensors = false;
  // The shapes of its results depend on floating-point arguments.
  bool floats_matter = false;
  int generator_argument = -1;
  // By result: the argument that it is, because the op writes to it; -1 if it is new.
  std::vector<int> written_argument_of_result;
  std::vector<int> written_arguments;
  // It reads nothing that it writes: what it writes to are its results (`out=`).
  bool writes_results_alone = true;

  std::atomic<std::int64_t> num_asynchronous{0};
  std::atomic<std::int64_t> num_synchronous{0};
};

OpFacts& facts_of(const c10::OperatorHandle& op);

// The ops that have run, and how often.
std::map<std::string, std::int64_t> op_counts();

}  // namespace sim
