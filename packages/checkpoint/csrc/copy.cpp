#include "copy.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "parallel.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace drivetrain {
namespace {

constexpr std::uint64_t kPiece = std::uint64_t{4} << 20;
// Below this, what is written is likely to be in the cache or to be read again soon.
constexpr std::size_t kStreamFrom = std::size_t{256} << 10;

#if defined(__x86_64__)

// Stores that go past the cache need no read of the line that they replace, and leave
// the cache to the training.
__attribute__((target("avx512f"))) void stream_avx512(unsigned char* to,
                                                      const unsigned char* from,
                                                      std::size_t size) {
  for (; size >= 256; size -= 256, to += 256, from += 256)
    for (int k = 0; k < 4; ++k)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 64 * k),
                          _mm512_loadu_si512(from + 64 * k));
  _mm_sfence();
  std::memcpy(to, from, size);
}

__attribute__((target("avx2"))) void stream_avx2(unsigned char* to,
                                                 const unsigned char* from,
                                                 std::size_t size) {
  for (; size >= 128; size -= 128, to += 128, from += 128)
    for (int k = 0; k < 4; ++k)
      _mm256_stream_si256(
          reinterpret_cast<__m256i*>(to + 32 * k),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * k)));
  _mm_sfence();
  std::memcpy(to, from, size);
}

#endif

void copy_piece(unsigned char* to, const unsigned char* from, std::size_t size) {
#if defined(__x86_64__)
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0;
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (size >= kStreamFrom && (has_avx512 || has_avx2)) {
    const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
    std::memcpy(to, from, head);
    (has_avx512 ? stream_avx512 : stream_avx2)(to + head, from + head, size - head);
    return;
  }
#endif
  std::memcpy(to, from, size);
}

}  // namespace

void copy_blocks(const Block* blocks, std::size_t num_blocks, int num_threads) {
  struct Piece {
    const unsigned char* from;
    unsigned char* to;
    std::size_t size;
  };
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < num_blocks; ++i)
    for (std::uint64_t at = 0; at < blocks[i].size; at += kPiece)
      pieces.push_back(
          {static_cast<const unsigned char*>(blocks[i].from) + at,
           static_cast<unsigned char*>(blocks[i].to) + at,
           static_cast<std::size_t>(std::min(kPiece, blocks[i].size - at))});
  // Small blocks are taken several at a time: a queue that is asked for each of ten
  // thousand would be the work.
  std::vector<std::size_t> starts;
  std::uint64_t gathered = kPiece;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (gathered + pieces[i].size > kPiece) {
      starts.push_back(i);
      gathered = 0;
    }
    gathered += pieces[i].size;
  }
  starts.push_back(pieces.size());
  const std::size_t num_turns = starts.size() - 1;
  std::atomic<std::size_t> next{0};
  run_on_threads(num_threads, num_turns, [&] {
    for (std::size_t turn; (turn = next.fetch_add(1)) < num_turns;)
      for (std::size_t i = starts[turn]; i < starts[turn + 1]; ++i)
        copy_piece(pieces[i].to, pieces[i].from, pieces[i].size);
  });
}

}  // namespace drivetrain
