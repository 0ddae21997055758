// SHA-256, as FIPS 180-4 defines it.

#pragma once

#include <string>
#include <string_view>

namespace drivetrain::nccl {

// Returns 64 hexadecimal digits.
std::string sha256(std::string_view text);

}  // namespace drivetrain::nccl
