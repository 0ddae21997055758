// A vector whose bytes lie in several places, as the buckets of gradients do.

#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <vector>

namespace drivetrain {

struct Piece {
  char* data;
  std::uint64_t size;
};

class Pieces {
 public:
  explicit Pieces(std::vector<Piece> pieces);

  std::uint64_t size() const { return ends_.empty() ? 0 : ends_.back(); }

  // Calls f(data, size) for each run of bytes within [begin, end).
  template <class F>
  void each(std::uint64_t begin, std::uint64_t end, F f) const {
    for (std::size_t i = find(begin); begin < end; ++i) {
      const std::uint64_t start = ends_[i] - pieces_[i].size;
      const std::uint64_t stop = end < ends_[i] ? end : ends_[i];
      if (stop > begin) f(pieces_[i].data + (begin - start), stop - begin);
      begin = stop > begin ? stop : begin;
    }
  }

  // Appends the runs of bytes within [begin, end).
  void append(std::uint64_t begin, std::uint64_t end, std::vector<iovec>& to) const;

 private:
  std::size_t find(std::uint64_t at) const;

  std::vector<Piece> pieces_;
  std::vector<std::uint64_t> ends_;
};

}  // namespace drivetrain
