#include "sha256.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace drivetrain::nccl {

namespace {

constexpr std::size_t block_bytes = 64;

using State = std::array<std::uint32_t, 8>;

// The first 32 bits of the fractions of the square roots of the first 8 primes.
constexpr State start = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> constants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
    0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
    0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
    0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
    0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
    0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
    0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2};

std::uint32_t rotate(std::uint32_t x, unsigned by) { return x >> by | x << (32 - by); }

void mix(State& state, std::string_view block) {
  std::array<std::uint32_t, 64> w;
  for (std::size_t i = 0; i < 16; ++i) {
    w[i] = 0;
    for (std::size_t j = 0; j < 4; ++j)
      w[i] = w[i] << 8 | static_cast<unsigned char>(block[4 * i + j]);
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t p = w[i - 15], q = w[i - 2];
    const std::uint32_t s0 = rotate(p, 7) ^ rotate(p, 18) ^ p >> 3;
    const std::uint32_t s1 = rotate(q, 17) ^ rotate(q, 19) ^ q >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + constants[i] + w[i];
    const std::uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const State rounds = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += rounds[i];
}

}  // namespace

std::string sha256(std::string_view text) {
  State state = start;
  const std::uint64_t num_bits = 8 * static_cast<std::uint64_t>(text.size());
  for (; text.size() >= block_bytes; text.remove_prefix(block_bytes))
    mix(state, text.substr(0, block_bytes));
  std::string end(text);
  end += '\x80';
  while (end.size() % block_bytes != block_bytes - sizeof num_bits) end += '\0';
  for (int shift = 56; shift >= 0; shift -= 8)
    end += static_cast<char>(num_bits >> shift & 0xff);
  for (std::size_t at = 0; at < end.size(); at += block_bytes)
    mix(state, std::string_view(end).substr(at, block_bytes));
  std::string digits;
  for (const std::uint32_t word : state) {
    char text_of_word[9];
    std::snprintf(text_of_word, sizeof text_of_word, "%08x", word);
    digits += text_of_word;
  }
  return digits;
}

}  // namespace drivetrain::nccl
