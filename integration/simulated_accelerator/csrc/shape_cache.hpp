#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sim {

// What a tensor among the results of an op looks like.
struct OutputRecord {
  bool defined = false;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  c10::ScalarType dtype = c10::ScalarType::Float;
  // The tensor argument whose memory it shares, counted over all arguments; -1: none.
  int alias_of = -1;
  std::int64_t storage_offset = 0;
};

// A result of an op: a tensor, or a list of them.
struct ResultRecord {
  bool is_list = false;
  std::vector<OutputRecord> outputs{};
};

// An argument that the op gives another shape, `out=` mostly.
struct ResizedArgument {
  int index = -1;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
};

struct OpRecord {
  std::vector<ResultRecord> results;
  std::vector<ResizedArgument> resized;
};

// A key of all that the shapes of an op's results may depend on; floating-point numbers
// change with every step, and few shapes do with them. No key for arguments of a kind
// that is not known here. The number is that of the op's facts.
std::optional<std::string> shape_key(std::int64_t op_id,
                                     c10::ArrayRef<c10::IValue> arguments,
                                     bool floats_matter);

// The records of op calls, made from what the CPU kernel really returned. Meta kernels
// are no substitute: they describe CUDA, and cost ten times as much.
std::shared_ptr<const OpRecord> find_record(const std::string& key);
void keep_record(std::string key, OpRecord record);

}  // namespace sim
