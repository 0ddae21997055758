#include "steps.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace drivetrain {

extern const Kernels baseline;
#ifdef DRIVETRAIN_X86
extern const Kernels avx2;
extern const Kernels avx512;
#endif

namespace {

const Kernels& pick_kernels() {
#ifdef DRIVETRAIN_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c"))
    return avx2;
#endif
  return baseline;
}

const Kernels& kernels() {
  static const Kernels& found = pick_kernels();
  return found;
}

constexpr std::int64_t kChunk = 1 << 14;
struct Chunk {
  std::int64_t row, start, size;
};

std::vector<Chunk> chunks_of(const Row* rows, std::int64_t begin, std::int64_t end) {
  std::vector<Chunk> chunks;
  for (std::int64_t row = begin; row < end; ++row)
    for (std::int64_t start = 0; start < rows[row].numel; start += kChunk)
      chunks.push_back({row, start, std::min(kChunk, rows[row].numel - start)});
  return chunks;
}

enum class Order { forward, backward };

// Each thread takes one run of chunks, the same in every call on the same chunks: what
// one pass left in a core's cache, the next pass over them, backward, finds there.
template <class Work>
void in_parallel(const std::vector<Chunk>& chunks, int num_threads, Order order,
                 const Work& work) {
  const auto count = static_cast<std::int64_t>(chunks.size());
  const auto threads =
      std::max<std::int64_t>(1, std::min<std::int64_t>(num_threads, count));
#pragma omp parallel for schedule(static, 1) \
    num_threads(static_cast<int>(threads)) if (threads > 1)
  for (std::int64_t thread = 0; thread < threads; ++thread) {
    const std::int64_t first = count * thread / threads;
    const std::int64_t last = count * (thread + 1) / threads;
    for (std::int64_t k = first; k < last; ++k) {
      const std::int64_t i = order == Order::forward ? k : first + last - 1 - k;
      work(i, chunks[static_cast<std::size_t>(i)]);
    }
  }
}

double trust_ratio(const Row& row, const LambScalars& s, const double squares[2]) {
  if (row.adapts == 0) return 1;
  const double weight = std::sqrt(squares[0]), step = std::sqrt(squares[1]);
  if (weight == 0 || step == 0) return 1;
  const double clipped = std::min(std::max(weight, s.norm_low), s.norm_high);
  return std::min(std::max(clipped / step, s.ratio_low), s.ratio_high);
}

void moments_of(const Row* rows, std::int64_t begin, std::int64_t end,
                const std::vector<Chunk>& chunks, const LambScalars& s, int num_threads,
                double (*squares)[2]) {
  struct Pair {
    double squares[2];
  };
  std::vector<Pair> parts(chunks.size(), Pair{});
  in_parallel(chunks, num_threads, Order::forward,
              [&](std::int64_t i, const Chunk& chunk) {
                kernels().lamb_moments(rows[chunk.row], chunk.start, chunk.size, s,
                                       parts[static_cast<std::size_t>(i)].squares);
              });
  for (std::int64_t row = begin; row < end; ++row)
    squares[row][0] = squares[row][1] = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i)
    for (int k = 0; k < 2; ++k) squares[chunks[i].row][k] += parts[i].squares[k];
}

void apply_to(const Row* rows, const std::vector<Chunk>& chunks, const LambScalars& s,
              int num_threads, const double (*squares)[2]) {
  in_parallel(chunks, num_threads, Order::backward, [&](std::int64_t, const Chunk& c) {
    const double ratio = trust_ratio(rows[c.row], s, squares[c.row]);
    kernels().lamb_apply(rows[c.row], c.start, c.size, s, ratio);
  });
}

// Steps the rows of at most `most` elements, each by one thread.
void lamb_whole_rows(const Row* rows, std::int64_t num_rows, std::int64_t most,
                     const LambScalars& s, int num_threads, double (*squares)[2]) {
  const int threads = std::max(1, num_threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const std::int64_t numel = rows[row].numel;
    if (numel > most) continue;
    double* sums = squares[row];
    sums[0] = sums[1] = 0;
    for (std::int64_t start = 0; start < numel; start += kChunk) {
      double parts[2] = {0, 0};
      const std::int64_t size = std::min(kChunk, numel - start);
      kernels().lamb_moments(rows[row], start, size, s, parts);
      sums[0] += parts[0];
      sums[1] += parts[1];
    }
    const double ratio = trust_ratio(rows[row], s, sums);
    const std::int64_t last = numel == 0 ? -1 : (numel - 1) / kChunk * kChunk;
    for (std::int64_t start = last; start >= 0; start -= kChunk)
      kernels().lamb_apply(rows[row], start, std::min(kChunk, numel - start), s, ratio);
  }
}

std::int64_t size_bytes(const Row& row) {
  const Dtype dtype = row.weight_dtype();
  return row.numel * (dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2);
}

// Calls `step(begin, end)` on runs of rows, in order, such that no two rows of a run
// share memory: threads would step it at once. Such rows are tied by hand, as in
// `head.weight.data = embedding.weight.data`.
template <class Step>
void in_turns(const Row* rows, std::int64_t num_rows, const Step& step) {
  struct Span {
    std::uintptr_t begin, end;
    std::int64_t row;
  };
  std::vector<Span> spans;
  spans.reserve(static_cast<std::size_t>(num_rows));
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const auto begin = reinterpret_cast<std::uintptr_t>(rows[row].weight);
    spans.push_back(
        {begin, begin + static_cast<std::uintptr_t>(size_bytes(rows[row])), row});
  }
  const auto by_address = [](const Span& a, const Span& b) {
    return a.begin < b.begin;
  };
  if (!std::is_sorted(spans.begin(), spans.end(), by_address))
    std::sort(spans.begin(), spans.end(), by_address);
  std::vector<std::int64_t> alone;
  std::uintptr_t reach = 0;
  for (const Span& span : spans) {
    if (span.begin < reach && span.begin < span.end) alone.push_back(span.row);
    reach = std::max(reach, span.end);
  }
  std::sort(alone.begin(), alone.end());
  std::int64_t begin = 0;
  for (const std::int64_t row : alone) {
    if (begin < row) step(begin, row);
    step(row, row + 1);
    begin = row + 1;
  }
  if (begin < num_rows) step(begin, num_rows);
}

void lamb_of_disjoint(const Row* rows, std::int64_t num_rows, const LambScalars& s,
                      int num_threads, double (*squares)[2]) {
  std::int64_t numel = 0;
  for (std::int64_t row = 0; row < num_rows; ++row) numel += rows[row].numel;
  const std::int64_t most = numel / (4 * std::max(1, num_threads));
  lamb_whole_rows(rows, num_rows, most, s, num_threads, squares);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    if (rows[row].numel <= most) continue;
    const auto chunks = chunks_of(rows, row, row + 1);
    moments_of(rows, row, row + 1, chunks, s, num_threads, squares);
    apply_to(rows, chunks, s, num_threads, squares);
  }
}

}  // namespace

const char* instruction_set() { return kernels().name; }

void agd(const Row* rows, std::int64_t num_rows, const AgdScalars& s, int num_threads) {
  in_turns(rows, num_rows, [&](std::int64_t begin, std::int64_t end) {
    in_parallel(chunks_of(rows, begin, end), num_threads, Order::forward,
                [&](std::int64_t, const Chunk& chunk) {
                  kernels().agd(rows[chunk.row], chunk.start, chunk.size, s);
                });
  });
}

void lamb(const Row* rows, std::int64_t num_rows, const LambScalars& s, int num_threads,
          double (*squares)[2]) {
  in_turns(rows, num_rows, [&](std::int64_t begin, std::int64_t end) {
    lamb_of_disjoint(rows + begin, end - begin, s, num_threads, squares + begin);
  });
}

void lamb_moments(const Row* rows, std::int64_t num_rows, const LambScalars& s,
                  int num_threads, double (*squares)[2]) {
  moments_of(rows, 0, num_rows, chunks_of(rows, 0, num_rows), s, num_threads, squares);
}

void lamb_apply(const Row* rows, std::int64_t num_rows, const LambScalars& s,
                int num_threads, const double (*squares)[2]) {
  in_turns(rows, num_rows, [&](std::int64_t begin, std::int64_t end) {
    apply_to(rows, chunks_of(rows, begin, end), s, num_threads, squares);
  });
}

void grad_squares(const Row* rows, std::int64_t num_rows, int num_threads,
                  double* squares) {
  const auto chunks = chunks_of(rows, 0, num_rows);
  std::vector<double> parts(chunks.size(), 0.0);
  in_parallel(chunks, num_threads, Order::forward, [&](std::int64_t i, const Chunk& c) {
    parts[static_cast<std::size_t>(i)] =
        kernels().grad_square(rows[c.row], c.start, c.size);
  });
  std::fill(squares, squares + num_rows, 0.0);
  for (std::size_t i = 0; i < chunks.size(); ++i) squares[chunks[i].row] += parts[i];
}

}  // namespace drivetrain
