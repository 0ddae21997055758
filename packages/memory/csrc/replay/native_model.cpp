#include "native_model.hpp"

#include <algorithm>

namespace drivetrain {

namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kLargeSegment = 20 * kMiB;
constexpr Bytes kLargeRequest = 10 * kMiB;
constexpr Bytes kSegmentUnit = 2 * kMiB;

Bytes segment_size(Bytes size) {
  if (size <= kSmallLimit) {
    return kSmallSegment;
  }
  return size < kLargeRequest ? kLargeSegment : round_up(size, kSegmentUnit);
}

bool is_split(Bytes rest, bool small) {
  return small ? rest >= kSmallest : rest > kSmallLimit;
}

}  // namespace

NativeModel::~NativeModel() {
  // Every segment is reached from its live blocks or from those in a pool.
  std::set<CachedBlock*> firsts;
  const auto add = [&](CachedBlock* block) {
    while (block->before != nullptr) {
      block = block->before;
    }
    firsts.insert(block);
  };
  for (const auto& pool : pools_) {
    std::for_each(pool.second.begin(), pool.second.end(), add);
  }
  for (const auto& live : live_) {
    add(live.second);
  }
  for (CachedBlock* block : firsts) {
    while (block->after != nullptr) {
      swallow(block);
    }
    delete block;
  }
}

bool NativeModel::allocate(std::uint32_t id, Bytes size, unsigned stream) {
  const Bytes rounded = std::max(kSmallest, round_up(size, kSmallest));
  const Key key{stream, rounded <= kSmallLimit};
  CachedBlock* block = from_pool(rounded, key);
  if (block == nullptr) {
    block = new_segment(rounded, key);
  }
  if (block == nullptr) {
    release_cached();
    block = new_segment(rounded, key);
  }
  if (block == nullptr) {
    return false;
  }
  if (is_split(block->size - rounded, key.second)) {
    CachedBlock* rest = cut(block, rounded);
    pools_[key].insert(rest);
  }
  block->live = true;
  live_[id] = block;
  return true;
}

void NativeModel::free(std::uint32_t id) {
  const auto found = live_.find(id);
  CachedBlock* block = found->second;
  live_.erase(found);
  block->live = false;
  CachedPool& pool = pools_[{block->stream, block->small}];
  if (block->after != nullptr && !block->after->live) {
    pool.erase(block->after);
    swallow(block);
  }
  if (block->before != nullptr && !block->before->live) {
    block = block->before;
    pool.erase(block);
    swallow(block);
  }
  pool.insert(block);
}

CachedBlock* NativeModel::from_pool(Bytes size, Key key) {
  CachedPool& pool = pools_[key];
  CachedBlock wanted;
  wanted.size = size;
  const auto found = pool.lower_bound(&wanted);
  if (found == pool.end()) {
    return nullptr;
  }
  CachedBlock* block = *found;
  pool.erase(found);
  return block;
}

CachedBlock* NativeModel::new_segment(Bytes size, Key key) {
  const Bytes bytes = segment_size(size);
  if (effort_.reserved_bytes + bytes > capacity_) {
    return nullptr;
  }
  auto* block = new CachedBlock;
  block->at = next_;
  block->size = bytes;
  block->stream = key.first;
  block->small = key.second;
  next_ += bytes;
  ++effort_.driver_calls;
  effort_.reserved_bytes += bytes;
  segment_events_.push_back({static_cast<std::int64_t>(bytes), key.first});
  effort_.peak_reserved_bytes =
      std::max(effort_.peak_reserved_bytes, effort_.reserved_bytes);
  const Bytes again = std::min(given_back_, bytes);
  given_back_ -= again;
  effort_.remapped_bytes += again;
  return block;
}

void NativeModel::release_cached() {
  ++effort_.flushes;
  for (auto& pool : pools_) {
    for (auto it = pool.second.begin(); it != pool.second.end();) {
      CachedBlock* block = *it;
      if (block->before != nullptr || block->after != nullptr) {
        ++it;
        continue;
      }
      it = pool.second.erase(it);
      effort_.reserved_bytes -= block->size;
      segment_events_.push_back(
          {-static_cast<std::int64_t>(block->size), block->stream});
      given_back_ += block->size;
      ++effort_.driver_calls;
      delete block;
    }
  }
}

}  // namespace drivetrain
