#include "crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace drivetrain {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78u;  // reflected

using Table = std::array<std::array<std::uint32_t, 256>, 8>;

Table make_table() {
  Table table{};
  for (std::uint32_t n = 0; n < 256; ++n) {
    std::uint32_t crc = n;
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc & 1u) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
    table[0][n] = crc;
  }
  for (std::size_t n = 0; n < 256; ++n)
    for (std::size_t k = 1; k < 8; ++k)
      table[k][n] = (table[k - 1][n] >> 8) ^ table[0][table[k - 1][n] & 0xff];
  return table;
}

// Eight bytes a turn (Kounavis and Berry, slicing by eight); without pre- and
// post-inversion.
std::uint32_t software(std::uint32_t crc, const unsigned char* data, std::size_t size) {
  static const Table table = make_table();
  for (; size >= 8; size -= 8, data += 8) {
    std::uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= table[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; size > 0; --size, ++data) crc = (crc >> 8) ^ table[0][(crc ^ *data) & 0xff];
  return crc;
}

#if defined(__x86_64__)

// Multiplies by x^(8 * kBytes) modulo the polynomial, a byte of the checksum at a time:
// what appending that many zero bytes does to it.
class Shift {
 public:
  explicit Shift(std::size_t num_bytes) {
    std::array<std::uint32_t, 32> image{};
    for (std::size_t bit = 0; bit < 32; ++bit) {
      std::uint32_t crc = std::uint32_t{1} << bit;
      for (std::size_t n = 0; n < num_bytes * 8; ++n)
        crc = (crc & 1u) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
      image[bit] = crc;
    }
    for (std::size_t k = 0; k < 4; ++k)
      for (std::uint32_t n = 0; n < 256; ++n) {
        std::uint32_t sum = 0;
        for (std::size_t bit = 0; bit < 8; ++bit)
          if ((n >> bit & 1u) != 0) sum ^= image[8 * k + bit];
        table_[k][n] = sum;
      }
  }

  std::uint32_t operator()(std::uint32_t crc) const {
    return table_[0][crc & 0xff] ^ table_[1][(crc >> 8) & 0xff] ^
           table_[2][(crc >> 16) & 0xff] ^ table_[3][crc >> 24];
  }

 private:
  std::array<std::array<std::uint32_t, 256>, 4> table_;
};

// Three streams at once hide the latency of the instruction, which is three cycles.
template <std::size_t kBytes>
__attribute__((target("sse4.2"))) std::uint32_t three_streams(
    std::uint32_t crc, const unsigned char*& data, std::size_t& size) {
  static const Shift shift(kBytes);
  for (; size >= 3 * kBytes; size -= 3 * kBytes, data += 3 * kBytes) {
    std::uint64_t a = crc, b = 0, c = 0;
    for (std::size_t i = 0; i < kBytes; i += 8) {
      std::uint64_t words[3];
      std::memcpy(&words[0], data + i, 8);
      std::memcpy(&words[1], data + kBytes + i, 8);
      std::memcpy(&words[2], data + 2 * kBytes + i, 8);
      a = _mm_crc32_u64(a, words[0]);
      b = _mm_crc32_u64(b, words[1]);
      c = _mm_crc32_u64(c, words[2]);
    }
    crc = shift(shift(static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b)) ^
          static_cast<std::uint32_t>(c);
  }
  return crc;
}

__attribute__((target("sse4.2"))) std::uint32_t hardware(std::uint32_t crc,
                                                         const unsigned char* data,
                                                         std::size_t size) {
  crc = three_streams<8192>(crc, data, size);
  crc = three_streams<256>(crc, data, size);
  std::uint64_t wide = crc;
  for (; size >= 8; size -= 8, data += 8) {
    std::uint64_t word;
    std::memcpy(&word, data, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<std::uint32_t>(wide);
  for (; size > 0; --size, ++data) crc = _mm_crc32_u8(crc, *data);
  return crc;
}

#endif

}  // namespace

bool crc32c_is_hardware() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("sse4.2") != 0;
#else
  return false;
#endif
}

std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  static const bool is_hardware = crc32c_is_hardware();
  if (is_hardware) return ~hardware(~crc, bytes, size);
#endif
  return ~software(~crc, bytes, size);
}

}  // namespace drivetrain
