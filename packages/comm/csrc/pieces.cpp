#include "pieces.hpp"

#include <algorithm>
#include <utility>

namespace drivetrain {

Pieces::Pieces(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
  std::uint64_t end = 0;
  for (const Piece& piece : pieces_) ends_.push_back(end += piece.size);
}

void Pieces::append(std::uint64_t begin, std::uint64_t end,
                    std::vector<iovec>& to) const {
  each(begin, end, [&](char* data, std::uint64_t size) { to.push_back({data, size}); });
}

std::size_t Pieces::find(std::uint64_t at) const {
  const auto found = std::upper_bound(ends_.begin(), ends_.end(), at);
  return static_cast<std::size_t>(found - ends_.begin());
}

}  // namespace drivetrain
