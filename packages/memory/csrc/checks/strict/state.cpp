#include "state.hpp"

#include <atomic>

namespace strict {

State& state() {
  // Never destroyed: threads may still call while the process ends.
  static auto* const only = new State;
  return *only;
}

Function& function(const char* name) {
  return *locked([&](State& now) { return &now.functions[name]; });
}

Result refusal(State& now, Function& called) {
  if (called.times > 0) {
    if (called.after > 0) {
      --called.after;
      return kSuccess;
    }
    --called.times;
    ++now.refused;
    return called.result;
  }
  if (now.random() % 1'000'000 < called.share) {
    ++now.refused;
    return called.result;
  }
  return kSuccess;
}

int& thread_capture_mode() {
  thread_local int mode = 0;
  return mode;
}

std::uint64_t this_thread() {
  static std::atomic<std::uint64_t> next{1};
  thread_local const std::uint64_t mine = next++;
  return mine;
}

const Mapping* mapping_at(const State& now, U64 at, U64* begin) {
  auto found = now.mapped.upper_bound(at);
  if (found == now.mapped.begin()) {
    return nullptr;
  }
  --found;
  if (found->first + found->second.bytes <= at) {
    return nullptr;
  }
  if (begin != nullptr) {
    *begin = found->first;
  }
  return &found->second;
}

bool usable(const State& now, U64 at, U64 bytes) {
  for (U64 next = at; next < at + bytes;) {
    U64 begin = 0;
    const Mapping* mapping = mapping_at(now, next, &begin);
    if (mapping == nullptr || !mapping->accessible) {
      return false;
    }
    next = begin + mapping->bytes;
  }
  return true;
}

}  // namespace strict
