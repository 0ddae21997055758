// Element-wise reductions of memory that need not be aligned.

#pragma once

#include <cstddef>
#include <cstdint>

namespace drivetrain {

enum class Type : std::int32_t { u8, i8, i32, i64, f16, bf16, f32, f64 };
enum class Operation : std::int32_t { sum, product, minimum, maximum, band, bor, bxor };

std::size_t size_of(Type type);

// target[i] = target[i] op source[i], for as many whole elements as the bytes hold.
// Sixteen-bit floats are reduced in 32 bits and rounded to nearest even.
void reduce(void* target, const void* source, std::size_t bytes, Type type,
            Operation operation);

// target[i] *= factor; for types of floating point.
void scale(void* target, std::size_t bytes, Type type, double factor);

}  // namespace drivetrain
