#include "shape_cache.hpp"

#include <ATen/core/Tensor.h>

#include <mutex>
#include <unordered_map>

#include "counters.hpp"

namespace sim {
namespace {

using at::Tensor;
using c10::IValue;

// A program with ever new shapes must not grow without end.
constexpr std::size_t kMaxRecords = 200'000;

struct Cache {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const OpRecord>> records;
};

Cache& cache() {
  static Cache& instance = *new Cache;
  return instance;
}

// Appends values to a key, each with a letter for its kind.
class KeyWriter {
 public:
  KeyWriter(std::int64_t op_id, bool floats_matter) : floats_matter_(floats_matter) {
    number(op_id);
  }

  bool value(const IValue& it) {
    if (it.isTensor()) {
      tensor(it.toTensor());
    } else if (it.isNone() || it.isGenerator()) {
      kind('n');
    } else if (it.isInt()) {
      kind('i');
      number(it.toInt());
    } else if (it.isBool()) {
      kind(it.toBool() ? 't' : 'f');
    } else if (it.isDouble()) {
      kind('d');
      if (floats_matter_) raw(it.toDouble());
    } else if (it.isComplexDouble()) {
      kind('c');
    } else if (it.isString()) {
      kind('s');
      number(static_cast<std::int64_t>(it.toStringRef().size()));
      key_ += it.toStringRef();
    } else if (it.isDevice()) {
      kind('p');
    } else {
      return list(it);
    }
    return true;
  }

  std::string take() { return std::move(key_); }

 private:
  void kind(char letter) { key_ += letter; }
  template <typename T>
  void raw(const T& it) {
    key_.append(reinterpret_cast<const char*>(&it), sizeof it);
  }
  void number(std::int64_t it) { raw(it); }

  void tensor(const Tensor& it) {
    if (!it.defined()) {
      kind('u');
      return;
    }
    kind(it.unsafeGetTensorImpl()->is_wrapped_number() ? 'w' : 'T');
    raw(it.scalar_type());
    number(it.dim());
    for (std::int64_t size : it.sizes()) number(size);
    for (std::int64_t stride : it.strides()) number(stride);
  }

  bool list(const IValue& it) {
    if (it.isTensorList()) {
      const auto tensors = it.toTensorList();
      begin_list('L', tensors.size());
      for (const Tensor& element : tensors) tensor(element);
    } else if (it.isOptionalTensorList()) {
      const auto tensors = it.toOptionalTensorList();
      begin_list('O', tensors.size());
      for (const std::optional<Tensor>& element : tensors) {
        tensor(element ? *element : Tensor());
      }
    } else if (it.isIntList()) {
      const auto numbers = it.toIntVector();
      begin_list('I', numbers.size());
      for (std::int64_t element : numbers) number(element);
    } else if (it.isDoubleList()) {
      begin_list('D', it.toDoubleVector().size());
    } else if (it.isBoolList()) {
      const auto flags = it.toBoolList();
      begin_list('B', flags.size());
      for (bool element : flags) kind(element ? 't' : 'f');
    } else if (it.isList()) {
      const auto values = it.toListRef();
      begin_list('V', values.size());
      for (const IValue& element : values) {
        if (!value(element)) return false;
      }
    } else {
      return false;
    }
    return true;
  }

  void begin_list(char letter, std::size_t size) {
    kind(letter);
    number(static_cast<std::int64_t>(size));
  }

  const bool floats_matter_;
  std::string key_;
};

}  // namespace

std::optional<std::string> shape_key(std::int64_t op_id,
                                     c10::ArrayRef<IValue> arguments,
                                     bool floats_matter) {
  KeyWriter writer(op_id, floats_matter);
  for (const IValue& argument : arguments) {
    if (!writer.value(argument)) return std::nullopt;
  }
  return writer.take();
}

std::shared_ptr<const OpRecord> find_record(const std::string& key) {
  std::lock_guard lock(cache().mutex);
  const auto record = cache().records.find(key);
  const bool is_hit = record != cache().records.end();
  ++(is_hit ? counters().shape_cache_hits : counters().shape_cache_misses);
  return is_hit ? record->second : nullptr;
}

void keep_record(std::string key, OpRecord record) {
  std::lock_guard lock(cache().mutex);
  if (cache().records.size() >= kMaxRecords) cache().records.clear();
  cache().records.emplace(std::move(key),
                          std::make_shared<const OpRecord>(std::move(record)));
}

}  // namespace sim
