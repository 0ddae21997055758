#include "torch_error.hpp"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <type_traits>
#include <typeinfo>

namespace drivetrain {

namespace {

// As c10::SourceLocation.
struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};

// The error is some 200 bytes large; its constructor alone writes to it.
constexpr std::size_t kRoom = 1024;

struct TorchError {
  void (*construct)(void*, SourceLocation, std::string) = nullptr;
  std::type_info* type = nullptr;

  bool complete() const { return construct != nullptr && type != nullptr; }
};

// It is a std::exception, first of all, and that has a virtual destructor.
void destroy(void* thrown) { static_cast<std::exception*>(thrown)->~exception(); }

TorchError find_error() {
  TorchError found;
  // Loaded already, if at all: PyTorch calls us.
  void* library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) {
    return found;
  }
  const auto find = [&](auto& symbol, const char* name) {
    symbol = reinterpret_cast<std::decay_t<decltype(symbol)>>(dlsym(library, name));
  };
  find(found.construct,
       "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_string"
       "IcSt11char_traitsIcESaIcEEE");
  find(found.type, "_ZTIN3c1016OutOfMemoryErrorE");
  return found;
}

}  // namespace

void throw_out_of_memory(const std::string& text) {
  static const TorchError error = find_error();
  if (!error.complete()) {
    throw std::runtime_error(text);
  }
  void* thrown = abi::__cxa_allocate_exception(kRoom);
  try {
    error.construct(thrown, {"allocate", "drivetrain_memory", 0}, text);
  } catch (...) {
    abi::__cxa_free_exception(thrown);
    throw;
  }
  abi::__cxa_throw(thrown, error.type, destroy);
}

}  // namespace drivetrain
