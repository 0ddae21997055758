// Where requests of each size were put together of scattered chunks.
//
// What a program asks for in one step it asks for in the next: the same range can then
// be had again, by chunks that come back to pages that still map them.

#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "block.hpp"

namespace drivetrain {

class SizeHistory {
 public:
  // Where a block of some size began.
  struct Place {
    Extent* extent;
    Address begin;

    bool operator==(const Place& other) const { return begin == other.begin; }
  };

  bool knows(Bytes size) const {
    return !by_size_.empty() && by_size_.find(size) != by_size_.end();
  }

  // The places of a size that is known, the oldest first.
  const std::vector<Place>& of(Bytes size) const { return by_size_.at(size); }

  void add(Bytes size, Place place) {
    std::vector<Place>& places = by_size_[size];
    if (std::find(places.begin(), places.end(), place) != places.end()) {
      return;
    }
    places.push_back(place);
    in_order_.emplace_back(size, place);
    if (in_order_.size() > kMost) {
      forget_oldest();
    }
  }

 private:
  // A program without a pattern leaves many behind.
  static constexpr std::size_t kMost = 4096;

  void forget_oldest() {
    const auto [size, place] = in_order_.front();
    in_order_.pop_front();
    std::vector<Place>& places = by_size_[size];
    places.erase(std::find(places.begin(), places.end(), place));
    if (places.empty()) {
      by_size_.erase(size);
    }
  }

  std::unordered_map<Bytes, std::vector<Place>> by_size_;
  std::deque<std::pair<Bytes, Place>> in_order_;
};

}  // namespace drivetrain
