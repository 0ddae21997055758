// The words of a line of a table, and the numbers among them.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace drivetrain::nccl {

// Splits at blanks, and leaves out a comment.
std::vector<std::string_view> split(std::string_view line);

// Returns the first byte outside of comments that is no printable ASCII, or nothing.
std::optional<unsigned> find_unprintable(std::string_view line);

// Returns a whole number, or nothing where the word is none or is out of range.
std::optional<std::uint64_t> number(std::string_view word, std::uint64_t least,
                                    std::uint64_t most);

// Returns the bytes that a word such as 64KiB stands for, or nothing.
std::optional<std::uint64_t> size(std::string_view word);

// Returns a word as messages show it: in quotes, and cut if it is long.
std::string quote(std::string_view word);

}  // namespace drivetrain::nccl
