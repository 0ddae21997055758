// What NCCL and a tuner say to each other, in every version of the interface: types and
// numbers of NCCL's public headers nccl.h and nccl_tuner.h, as of 2.24 to 2.32.

#pragma once

#include <cstddef>
#include <cstdint>

#define DRIVETRAIN_EXPORT __attribute__((visibility("default")))

namespace drivetrain::nccl {

enum class Result : int { success = 0 };

enum class LogLevel : int { warn = 2, info = 3 };

// The parts of NCCL whose messages NCCL_DEBUG_SUBSYS selects.
constexpr unsigned long log_init = 0x1;
constexpr unsigned long log_tuning = 0x40;

using Log = void (*)(LogLevel level, unsigned long parts, const char* file, int line,
                     const char* format, ...);

constexpr const char* tuner_name = "drivetrain";

}  // namespace drivetrain::nccl
