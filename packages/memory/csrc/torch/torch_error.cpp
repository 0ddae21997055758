#include "torch_error.hpp"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
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

constexpr const char* kMessage =
    "C1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";

// Loaded already, if at all: PyTorch calls us.
void* find_symbol(const std::string& name) {
  for (const char* file : {"libc10.so", "libc10_cuda.so"}) {
    if (void* library = dlopen(file, RTLD_LAZY | RTLD_NOLOAD)) {
      if (void* symbol = dlsym(library, name.c_str())) {
        return symbol;
      }
    }
  }
  return nullptr;
}

TorchError find_error() {
  TorchError found;
  void* construct = find_symbol(std::string("_ZN3c1016OutOfMemoryError") + kMessage);
  if (construct == nullptr) {
    // It adds nothing to its base, and inherits the constructors: before torch 2.13
    // they are inlined, and its type is where it is thrown.
    construct = find_symbol(std::string("_ZN3c105Error") + kMessage);
  }
  found.construct = reinterpret_cast<decltype(found.construct)>(construct);
  found.type =
      static_cast<std::type_info*>(find_symbol("_ZTIN3c1016OutOfMemoryErrorE"));
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
