// One row of the pointer table: a parameter, its gradient and its state.
//
// The table is an array of int64 that Python fills; `_table.py` names its columns
// alike.
#pragma once

#include <cstdint>

namespace drivetrain {

enum class Dtype : std::uint8_t { f32 = 0, f64 = 1, bf16 = 2, f16 = 3 };

struct Row {
  void* weight;
  const void* grad;
  void* exp_avg;
  void* exp_avg_sq;
  void* max_exp_avg_sq;  // null without AMSGrad
  void* master;          // null without a master copy of the weight
  std::int64_t numel;
  // One byte each, from the lowest: weight, grad, moments, master.
  std::uint64_t dtypes;
  // Seed of stochastic rounding plus one; 0 rounds to nearest.
  std::int64_t seed;
  std::int64_t adapts;  // whether LAMB scales the step by the trust ratio

  Dtype weight_dtype() const { return dtype(0); }
  Dtype grad_dtype() const { return dtype(8); }
  Dtype moment_dtype() const { return dtype(16); }
  Dtype master_dtype() const { return dtype(24); }
  bool in_double() const {
    return weight_dtype() == Dtype::f64 || moment_dtype() == Dtype::f64 ||
           (master != nullptr && master_dtype() == Dtype::f64);
  }

 private:
  Dtype dtype(int shift) const { return static_cast<Dtype>((dtypes >> shift) & 0xff); }
};

static_assert(sizeof(Row) == 10 * sizeof(std::int64_t), "a row is ten int64");

// What a step of AGD needs besides tensors; the equations stand in `_agd.py`.
struct AgdScalars {
  double beta1, beta2, previous, gain, floor, rate, shrink, coupled;
  double clip;        // infinity for no bound
  double grad_scale;  // factor on the gradients; negative to ascend
};

// What a step of LAMB needs besides tensors; the equations stand in `_lamb.py`.
struct LambScalars {
  double beta1, beta2, average, debias1, debias2_root, eps, inside, shrink, coupled;
  double lr;
  double grad_scale;
  double norm_low, norm_high, ratio_low, ratio_high;
};

// The work on `n` elements of a row from `start` on, compiled once per instruction set.
struct Kernels {
  const char* name;
  void (*agd)(const Row&, std::int64_t start, std::int64_t n, const AgdScalars&);
  // Updates the moments and returns the squared norms of the weight and of the step.
  void (*lamb_moments)(const Row&, std::int64_t start, std::int64_t n,
                       const LambScalars&, double squares[2]);
  void (*lamb_apply)(const Row&, std::int64_t start, std::int64_t n, const LambScalars&,
                     double ratio);
  double (*grad_square)(const Row&, std::int64_t start, std::int64_t n);
};

}  // namespace drivetrain
