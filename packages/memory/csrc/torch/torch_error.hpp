// PyTorch's own out-of-memory error, thrown from a library that is not built with it.

#pragma once

#include <string>

namespace drivetrain {

// Throws c10::OutOfMemoryError where PyTorch's library is loaded and exports it, else a
// std::runtime_error with the same text.
[[noreturn]] void throw_out_of_memory(const std::string& text);

}  // namespace drivetrain
