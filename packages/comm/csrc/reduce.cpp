#include "reduce.hpp"

#include <cmath>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DRIVETRAIN_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define DRIVETRAIN_CLONES
#endif

namespace drivetrain {
namespace {

struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};

float from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::uint32_t to_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float widen(Brain value) { return from_bits(std::uint32_t{value.bits} << 16); }

Brain narrow(float value, Brain*) {
  std::uint32_t bits = to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fc0};
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<std::uint16_t>(bits >> 16)};
}

// Without branches, so that loops over halves become vector instructions, and without
// arithmetic on subnormal floats, which takes fifty times as long.
std::uint32_t either(bool first, std::uint32_t one, std::uint32_t other) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(first);
  return (one & mask) | (other & ~mask);
}

// A half has 5 bits of exponent with bias 15, a float 8 with bias 127.
float widen(Half value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t rest = (value.bits & 0x7fffu) << 13;
  const std::uint32_t most = either(rest >= 0x0f800000u, 0x38000000u, 0u);
  const std::uint32_t normal = rest + 0x38000000u + most;
  // The fraction of a subnormal half, over 2^-14.
  const std::uint32_t subnormal =
      to_bits(from_bits(rest + 0x38800000u) - from_bits(0x38800000u));
  return from_bits(either(rest < 0x00800000u, subnormal, normal) | sign);
}

Half narrow(float value, Half*) {
  const std::uint32_t bits = to_bits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + odd) >> 13;
  // Adding a half lets the hardware round to a subnormal's last place.
  const bool is_small = magnitude < 0x38800000u;
  const float small = from_bits(either(is_small, magnitude, 0u));
  const std::uint32_t subnormal = to_bits(small + 0.5f) - 0x3f000000u;
  std::uint32_t half = either(is_small, subnormal, normal);
  half = either(magnitude >= 0x47800000u, 0x7c00u, half);
  half = either(magnitude > 0x7f800000u, 0x7e00u, half);
  return {static_cast<std::uint16_t>(sign | half)};
}

template <class T>
constexpr bool is_small_float = std::is_same_v<T, Half> || std::is_same_v<T, Brain>;

template <class T>
using Wide = std::conditional_t<is_small_float<T>, float, T>;

template <class T>
Wide<T> load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  if constexpr (is_small_float<T>)
    return widen(value);
  else
    return value;
}

template <class T>
void store(char* to, Wide<T> value) {
  T narrowed;
  if constexpr (is_small_float<T>)
    narrowed = narrow(value, static_cast<T*>(nullptr));
  else
    narrowed = value;
  std::memcpy(to, &narrowed, sizeof narrowed);
}

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};

struct Product {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<std::uint64_t>(a) *
                            static_cast<std::uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

// A value that is no number stays, as in torch.
struct Minimum {
  template <class T>
  T operator()(T a, T b) const {
    return b < a || b != b ? b : a;
  }
};

struct Maximum {
  template <class T>
  T operator()(T a, T b) const {
    return a < b || b != b ? b : a;
  }
};

struct And {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};

struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};

struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

template <class T, class F>
inline void each(char* target, const char* source, std::size_t bytes, F f) {
  const std::size_t count = bytes / sizeof(T);
  for (std::size_t i = 0; i < count; ++i) {
    char* to = target + i * sizeof(T);
    store<T>(to, f(load<T>(to), load<T>(source + i * sizeof(T))));
  }
}

DRIVETRAIN_CLONES void add_f32(char* target, const char* source, std::size_t bytes) {
  each<float>(target, source, bytes, Sum{});
}

DRIVETRAIN_CLONES void add_f64(char* target, const char* source, std::size_t bytes) {
  each<double>(target, source, bytes, Sum{});
}

DRIVETRAIN_CLONES void add_bf16(char* target, const char* source, std::size_t bytes) {
  each<Brain>(target, source, bytes, Sum{});
}

DRIVETRAIN_CLONES void add_f16(char* target, const char* source, std::size_t bytes) {
  each<Half>(target, source, bytes, Sum{});
}

template <class T>
void reduce_as(char* target, const char* source, std::size_t bytes,
               Operation operation) {
  switch (operation) {
    case Operation::sum:
      return each<T>(target, source, bytes, Sum{});
    case Operation::product:
      return each<T>(target, source, bytes, Product{});
    case Operation::minimum:
      return each<T>(target, source, bytes, Minimum{});
    case Operation::maximum:
      return each<T>(target, source, bytes, Maximum{});
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (operation == Operation::band) return each<T>(target, source, bytes, And{});
    if (operation == Operation::bor) return each<T>(target, source, bytes, Or{});
    if (operation == Operation::bxor) return each<T>(target, source, bytes, Xor{});
  }
}

template <class T>
void scale_as(char* target, std::size_t bytes, double factor) {
  const auto by = static_cast<Wide<T>>(factor);
  for (std::size_t i = 0; i < bytes / sizeof(T); ++i) {
    char* at = target + i * sizeof(T);
    store<T>(at, load<T>(at) * by);
  }
}

}  // namespace

std::size_t size_of(Type type) {
  switch (type) {
    case Type::u8:
    case Type::i8:
      return 1;
    case Type::f16:
    case Type::bf16:
      return 2;
    case Type::i32:
    case Type::f32:
      return 4;
    case Type::i64:
    case Type::f64:
      return 8;
  }
  return 0;
}

void reduce(void* target, const void* source, std::size_t bytes, Type type,
            Operation operation) {
  auto* to = static_cast<char*>(target);
  const auto* from = static_cast<const char*>(source);
  const bool adds = operation == Operation::sum;
  switch (type) {
    case Type::f32:
      return adds ? add_f32(to, from, bytes)
                  : reduce_as<float>(to, from, bytes, operation);
    case Type::f64:
      return adds ? add_f64(to, from, bytes)
                  : reduce_as<double>(to, from, bytes, operation);
    case Type::f16:
      return adds ? add_f16(to, from, bytes)
                  : reduce_as<Half>(to, from, bytes, operation);
    case Type::bf16:
      return adds ? add_bf16(to, from, bytes)
                  : reduce_as<Brain>(to, from, bytes, operation);
    case Type::u8:
      return reduce_as<std::uint8_t>(to, from, bytes, operation);
    case Type::i8:
      return reduce_as<std::int8_t>(to, from, bytes, operation);
    case Type::i32:
      return reduce_as<std::int32_t>(to, from, bytes, operation);
    case Type::i64:
      return reduce_as<std::int64_t>(to, from, bytes, operation);
  }
}

void scale(void* target, std::size_t bytes, Type type, double factor) {
  auto* to = static_cast<char*>(target);
  switch (type) {
    case Type::f32:
      return scale_as<float>(to, bytes, factor);
    case Type::f64:
      return scale_as<double>(to, bytes, factor);
    case Type::f16:
      return scale_as<Half>(to, bytes, factor);
    case Type::bf16:
      return scale_as<Brain>(to, bytes, factor);
    default:
      return;
  }
}

}  // namespace drivetrain
