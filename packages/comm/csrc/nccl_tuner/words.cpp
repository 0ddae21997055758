#include "words.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace drivetrain::nccl {

namespace {

constexpr std::string_view blanks = " \t\r";
constexpr std::string_view digits = "0123456789";
constexpr std::size_t most_shown = 60;

constexpr std::array<std::pair<std::string_view, unsigned>, 5> units = {
    {{"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};

std::string_view without_comment(std::string_view line) {
  return line.substr(0, line.find('#'));
}

}  // namespace

std::vector<std::string_view> split(std::string_view line) {
  line = without_comment(line);
  std::vector<std::string_view> words;
  std::size_t at = line.find_first_not_of(blanks);
  while (at != line.npos) {
    const std::size_t end = std::min(line.find_first_of(blanks, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(blanks, end);
  }
  return words;
}

std::optional<unsigned> find_unprintable(std::string_view line) {
  for (const char c : without_comment(line)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_printable = byte >= 0x20 && byte < 0x7f;
    if (!is_printable && blanks.find(c) == blanks.npos) return byte;
  }
  return {};
}

std::optional<std::uint64_t> number(std::string_view word, std::uint64_t least,
                                    std::uint64_t most) {
  if (word.empty() || word.find_first_not_of(digits) != word.npos) return {};
  std::uint64_t value = 0;
  for (const char digit : word) {
    const auto next = static_cast<std::uint64_t>(digit - '0');
    if (next > most || value > (most - next) / 10) return {};
    value = 10 * value + next;
  }
  if (value < least) return {};
  return value;
}

std::optional<std::uint64_t> size(std::string_view word) {
  const std::size_t end = std::min(word.find_first_not_of(digits), word.size());
  for (const auto& [unit, shift] : units) {
    if (word.substr(end) != unit) continue;
    const auto value = number(word.substr(0, end), 0, INT64_MAX >> shift);
    if (value) return *value << shift;
  }
  return {};
}

std::string quote(std::string_view word) {
  const bool is_long = word.size() > most_shown;
  return "'" + std::string(word.substr(0, most_shown)) + (is_long ? "...'" : "'");
}

}  // namespace drivetrain::nccl
