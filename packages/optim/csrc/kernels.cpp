// The arithmetic of the fused steps, in tiles that stay in the first-level cache.
//
// Compiled once per instruction set, with another DRIVETRAIN_KERNELS. It must not use
// inline functions of headers: the linker might keep those of a newer instruction set
// for all.

#include "row.hpp"

namespace drivetrain {
namespace {

constexpr std::int64_t kTile = 1024;

// ARM has had half precision before C++ compilers knew it by the other name.
#ifdef __ARM_FP16_FORMAT_IEEE
using Half = __fp16;
#else
using Half = _Float16;
#endif

float bits_to_float(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

std::uint32_t float_to_bits(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

std::uint16_t to_bf16_nearest(float value) {
  std::uint32_t bits = float_to_bits(value);
  std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>(is_nan ? 0x7fc0u : rounded);
}

// Sixteen random bits for an element: the finalizer of MurmurHash3.
std::uint32_t noise(std::uint32_t seed, std::uint32_t index) {
  std::uint32_t h = index * 0x9e3779b9u + seed;
  h ^= h >> 16;
  h *= 0x85ebca6bu;
  h ^= h >> 13;
  h *= 0xc2b2ae35u;
  h ^= h >> 16;
  return h & 0xffffu;
}

std::uint16_t to_bf16_stochastic(float value, std::uint32_t random) {
  std::uint32_t bits = float_to_bits(value);
  bool is_finite = (bits & 0x7f800000u) != 0x7f800000u;
  std::uint32_t up = (bits + random) >> 16;
  return static_cast<std::uint16_t>(is_finite ? up : to_bf16_nearest(value));
}

template <class T>
constexpr Dtype own_dtype() {
  return sizeof(T) == sizeof(double) ? Dtype::f64 : Dtype::f32;
}

// A tile of a tensor as an array of T: the tensor's own memory where it has that type,
// else a buffer that is filled from it and written back.
template <class T>
class Tile {
 public:
  T* load(const void* base, Dtype dtype, std::int64_t start, std::int64_t n) {
    if (dtype == own_dtype<T>())
      return static_cast<T*>(const_cast<void*>(base)) + start;
    switch (dtype) {
      case Dtype::f32: {
        const float* from = static_cast<const float*>(base) + start;
        for (std::int64_t i = 0; i < n; ++i) buffer_[i] = static_cast<T>(from[i]);
        break;
      }
      case Dtype::f64: {
        const double* from = static_cast<const double*>(base) + start;
        for (std::int64_t i = 0; i < n; ++i) buffer_[i] = static_cast<T>(from[i]);
        break;
      }
      case Dtype::bf16: {
        const std::uint16_t* from = static_cast<const std::uint16_t*>(base) + start;
        for (std::int64_t i = 0; i < n; ++i)
          buffer_[i] = bits_to_float(static_cast<std::uint32_t>(from[i]) << 16);
        break;
      }
      case Dtype::f16: {
        const Half* from = static_cast<const Half*>(base) + start;
        for (std::int64_t i = 0; i < n; ++i) buffer_[i] = static_cast<T>(from[i]);
        break;
      }
    }
    return buffer_;
  }

 private:
  T buffer_[kTile];
};

template <class T>
void store(const T* values, void* base, Dtype dtype, std::int64_t start, std::int64_t n,
           std::int64_t seed = 0) {
  if (dtype == own_dtype<T>()) {
    T* to = static_cast<T*>(base) + start;
    if (to != values)
      for (std::int64_t i = 0; i < n; ++i) to[i] = values[i];
    return;
  }
  switch (dtype) {
    case Dtype::f32: {
      float* to = static_cast<float*>(base) + start;
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(values[i]);
      break;
    }
    case Dtype::f64: {
      double* to = static_cast<double*>(base) + start;
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(values[i]);
      break;
    }
    case Dtype::bf16: {
      std::uint16_t* to = static_cast<std::uint16_t*>(base) + start;
      if (seed == 0) {
        for (std::int64_t i = 0; i < n; ++i)
          to[i] = to_bf16_nearest(static_cast<float>(values[i]));
      } else {
        std::uint32_t s = static_cast<std::uint32_t>(seed - 1);
        for (std::int64_t i = 0; i < n; ++i)
          to[i] = to_bf16_stochastic(static_cast<float>(values[i]),
                                     noise(s, static_cast<std::uint32_t>(start + i)));
      }
      break;
    }
    case Dtype::f16: {
      Half* to = static_cast<Half*>(base) + start;
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<Half>(values[i]);
      break;
    }
  }
}

// The tensors of a row in the type of arithmetic, one tile at a time.
template <class T>
struct Tiles {
  Tile<T> weight_tile, grad_tile, first_tile, second_tile, largest_tile;
  T *w, *g, *m, *v, *largest;

  void load_state(const Row& row, std::int64_t start, std::int64_t n) {
    w = row.master != nullptr
            ? weight_tile.load(row.master, row.master_dtype(), start, n)
            : weight_tile.load(row.weight, row.weight_dtype(), start, n);
    m = first_tile.load(row.exp_avg, row.moment_dtype(), start, n);
    v = second_tile.load(row.exp_avg_sq, row.moment_dtype(), start, n);
  }

  void load_grad(const Row& row, std::int64_t start, std::int64_t n) {
    g = grad_tile.load(row.grad, row.grad_dtype(), start, n);
  }

  void store_moments(const Row& row, std::int64_t start, std::int64_t n) const {
    store(m, row.exp_avg, row.moment_dtype(), start, n);
    store(v, row.exp_avg_sq, row.moment_dtype(), start, n);
  }

  void store_weight(const Row& row, std::int64_t start, std::int64_t n) const {
    if (row.master != nullptr) store(w, row.master, row.master_dtype(), start, n);
    store(w, row.weight, row.weight_dtype(), start, n, row.seed);
  }
};

float root(float x) { return __builtin_sqrtf(x); }
double root(double x) { return __builtin_sqrt(x); }

template <class T, bool kAmsgrad, bool kClip>
void agd_tile(std::int64_t n, T* __restrict w, const T* __restrict g, T* __restrict m,
              T* __restrict v, T* __restrict largest, const AgdScalars& s) {
  const T keep = static_cast<T>(1 - s.beta1), beta2 = static_cast<T>(s.beta2);
  const T previous = static_cast<T>(s.previous), floor = static_cast<T>(s.floor);
  const T value = static_cast<T>((1 - s.beta2) * s.gain * s.gain);
  const T rate = static_cast<T>(s.rate), shrink = static_cast<T>(s.shrink);
  const T coupled = static_cast<T>(s.coupled), scale = static_cast<T>(s.grad_scale);
  const T clip = static_cast<T>(s.clip);
  for (std::int64_t i = 0; i < n; ++i) {
    // Not `0 * w`, which is NaN for an infinite weight.
    T grad = g[i] * scale + (coupled != 0 ? coupled * w[i] : 0);
    T difference = grad - previous * m[i];
    // From the nearer end, as torch's lerp: exact where beta1 is 0.
    m[i] =
        keep < T(0.5) ? m[i] + keep * (grad - m[i]) : grad - (1 - keep) * (grad - m[i]);
    v[i] = beta2 * v[i] + value * difference * difference;
    T second = v[i];
    if (kAmsgrad) {
      // The comparisons are written so that NaN stays NaN.
      second = largest[i] = !(v[i] <= largest[i]) ? v[i] : largest[i];
    }
    T denominator = root(second);
    denominator = denominator < floor ? floor : denominator;
    T step = m[i] / denominator;
    if (kClip) {
      step = step > clip ? clip : step;
      step = step < -clip ? -clip : step;
    }
    w[i] = w[i] * shrink - rate * step;
  }
}

template <class T>
void agd_rows(const Row& row, std::int64_t start, std::int64_t n, const AgdScalars& s) {
  Tiles<T> t;
  const bool clips = s.clip != __builtin_inf();
  for (std::int64_t end = start + n; start < end; start += kTile) {
    const std::int64_t size = end - start < kTile ? end - start : kTile;
    t.load_state(row, start, size);
    t.load_grad(row, start, size);
    if (row.max_exp_avg_sq != nullptr) {
      t.largest =
          t.largest_tile.load(row.max_exp_avg_sq, row.moment_dtype(), start, size);
      auto* update = clips ? &agd_tile<T, true, true> : &agd_tile<T, true, false>;
      update(size, t.w, t.g, t.m, t.v, t.largest, s);
      store(t.largest, row.max_exp_avg_sq, row.moment_dtype(), start, size);
    } else {
      auto* update = clips ? &agd_tile<T, false, true> : &agd_tile<T, false, false>;
      update(size, t.w, t.g, t.m, t.v, nullptr, s);
    }
    t.store_moments(row, start, size);
    t.store_weight(row, start, size);
  }
}

template <class T>
struct LambTerms {
  explicit LambTerms(const LambScalars& s)
      : debias1(static_cast<T>(1 / s.debias1)),
        debias2(static_cast<T>(1 / s.debias2_root)),
        eps(static_cast<T>(s.eps)),
        inside(static_cast<T>(s.inside)) {}

  T direction(T w, T m, T v) const {
    return m * debias1 / (root(v) * debias2 + eps) + (inside != 0 ? inside * w : 0);
  }

  T debias1, debias2, eps, inside;
};

// Sums are kept in sixteen parts: a vector register, whose order does not depend on the
// instruction set.
constexpr int kLanes = 16;

template <class T>
double total(const T (&lanes)[kLanes]) {
  double sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(lanes[lane]);
  return sum;
}

template <class T>
void lamb_moments_tile(std::int64_t n, const T* __restrict w, const T* __restrict g,
                       T* __restrict m, T* __restrict v, const LambScalars& s,
                       double squares[2]) {
  const T beta1 = static_cast<T>(s.beta1), beta2 = static_cast<T>(s.beta2);
  const T average = static_cast<T>(s.average), fresh = static_cast<T>(1 - s.beta2);
  const T coupled = static_cast<T>(s.coupled), scale = static_cast<T>(s.grad_scale);
  const LambTerms<T> terms(s);
  T weights[kLanes] = {}, steps[kLanes] = {};
  auto one = [&](std::int64_t i, int lane) {
    T grad = g[i] * scale + (coupled != 0 ? coupled * w[i] : 0);
    T first = beta1 * m[i] + average * grad;
    T second = beta2 * v[i] + fresh * grad * grad;
    m[i] = first;
    v[i] = second;
    T u = terms.direction(w[i], first, second);
    weights[lane] += w[i] * w[i];
    steps[lane] += u * u;
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) one(i + lane, lane);
  for (int lane = 0; i < n; ++i, ++lane) one(i, lane);
  squares[0] += total(weights);
  squares[1] += total(steps);
}

template <class T>
void lamb_moments_rows(const Row& row, std::int64_t start, std::int64_t n,
                       const LambScalars& s, double squares[2]) {
  Tiles<T> t;
  for (std::int64_t end = start + n; start < end; start += kTile) {
    const std::int64_t size = end - start < kTile ? end - start : kTile;
    t.load_state(row, start, size);
    t.load_grad(row, start, size);
    lamb_moments_tile(size, t.w, t.g, t.m, t.v, s, squares);
    t.store_moments(row, start, size);
  }
}

template <class T>
void lamb_apply_rows(const Row& row, std::int64_t start, std::int64_t n,
                     const LambScalars& s, double ratio) {
  Tiles<T> t;
  const LambTerms<T> terms(s);
  const T shrink = static_cast<T>(s.shrink), rate = static_cast<T>(s.lr * ratio);
  for (std::int64_t end = start + n; start < end; start += kTile) {
    const std::int64_t size = end - start < kTile ? end - start : kTile;
    t.load_state(row, start, size);
    T* __restrict w = t.w;
    const T* __restrict m = t.m;
    const T* __restrict v = t.v;
    for (std::int64_t i = 0; i < size; ++i)
      w[i] = w[i] * shrink - rate * terms.direction(w[i], m[i], v[i]);
    t.store_weight(row, start, size);
  }
}

template <class T>
double grad_square_rows(const Row& row, std::int64_t start, std::int64_t n) {
  Tile<T> tile;
  double sum = 0;
  for (std::int64_t end = start + n; start < end; start += kTile) {
    const std::int64_t size = end - start < kTile ? end - start : kTile;
    const T* g = tile.load(row.grad, row.grad_dtype(), start, size);
    T lanes[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane)
        lanes[lane] += g[i + lane] * g[i + lane];
    for (int lane = 0; i < size; ++i, ++lane) lanes[lane] += g[i] * g[i];
    sum += total(lanes);
  }
  return sum;
}

void agd(const Row& row, std::int64_t start, std::int64_t n, const AgdScalars& s) {
  row.in_double() ? agd_rows<double>(row, start, n, s)
                  : agd_rows<float>(row, start, n, s);
}

void lamb_moments(const Row& row, std::int64_t start, std::int64_t n,
                  const LambScalars& s, double squares[2]) {
  row.in_double() ? lamb_moments_rows<double>(row, start, n, s, squares)
                  : lamb_moments_rows<float>(row, start, n, s, squares);
}

void lamb_apply(const Row& row, std::int64_t start, std::int64_t n,
                const LambScalars& s, double ratio) {
  row.in_double() ? lamb_apply_rows<double>(row, start, n, s, ratio)
                  : lamb_apply_rows<float>(row, start, n, s, ratio);
}

double grad_square(const Row& row, std::int64_t start, std::int64_t n) {
  if (row.grad_dtype() != Dtype::f64) {
    const double sum = grad_square_rows<float>(row, start, n);
    // A finite gradient of 1.8e19 has a square that float32 does not have.
    if (sum < __builtin_inf()) return sum;
  }
  return grad_square_rows<double>(row, start, n);
}

}  // namespace

#define DRIVETRAIN_TEXT_OF(name) #name
#define DRIVETRAIN_TEXT(name) DRIVETRAIN_TEXT_OF(name)

extern const Kernels DRIVETRAIN_KERNELS;
const Kernels DRIVETRAIN_KERNELS = {DRIVETRAIN_TEXT(DRIVETRAIN_KERNELS), agd,
                                    lamb_moments, lamb_apply, grad_square};

}  // namespace drivetrain
