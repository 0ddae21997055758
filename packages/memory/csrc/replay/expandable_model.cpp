#include "expandable_model.hpp"

#include <algorithm>
#include <iterator>
#include <vector>

namespace drivetrain {

namespace {

// PyTorch reserves 9/8 of the device for a segment; a small capacity here stands for a
// part of a large device, so that addresses do not run out.
constexpr Bytes kAddresses = 32;

bool usable(const CachedBlock* block) { return block != nullptr && !block->live; }

Bytes expandable_size(const CachedBlock* block) {
  const CachedBlock* after = block->after;
  return block->size + (after != nullptr && !after->mapped ? after->size : 0);
}

bool has_space(const CachedBlock* block, Bytes size) {
  Bytes bytes = 0;
  while (bytes < size && usable(block)) {
    bytes += block->size;
    block = block->after;
  }
  return bytes >= size;
}

}  // namespace

ExpandableModel::~ExpandableModel() {
  for (auto& segment : segments_) {
    CachedBlock* first = segment.second.first;
    while (first->after != nullptr) {
      swallow(first);
    }
    delete first;
  }
}

bool ExpandableModel::allocate(std::uint32_t id, Bytes size, unsigned stream) {
  const Bytes rounded = std::max(kSmallest, round_up(size, kSmallest));
  Segment& segment = segment_of({stream, rounded <= kSmallLimit});
  CachedBlock* block = from_pool(segment, rounded);
  if (block == nullptr) {
    block = expanded(segment, rounded);
  }
  if (block == nullptr) {
    release_cached();
    block = expanded(segment, rounded);
  }
  if (block == nullptr) {
    return false;
  }
  if (block->size > rounded) {
    segment.free.insert(cut(block, rounded));
  }
  block->live = true;
  live_[id] = block;
  return true;
}

void ExpandableModel::free(std::uint32_t id) {
  const auto found = live_.find(id);
  CachedBlock* block = found->second;
  live_.erase(found);
  block->live = false;
  Segment& segment = segment_of({block->stream, block->small});
  segment.free.insert(join(segment, block));
}

ExpandableModel::Segment& ExpandableModel::segment_of(Key key) {
  Segment& segment = segments_[key];
  if (segment.first == nullptr) {
    segment.handle = key.second ? kSmallSegment : handle_;
    auto* block = new CachedBlock;
    block->at = next_;
    block->size = round_up(kAddresses * capacity_, segment.handle);
    block->stream = key.first;
    block->small = key.second;
    block->mapped = false;
    // Segments do not touch.
    next_ += block->size + segment.handle;
    next_ = round_up(next_, segment.handle);
    block->at = round_up(block->at, segment.handle);
    segment.first = block;
    segment.unmapped[block->at] = block;
  }
  return segment;
}

CachedBlock* ExpandableModel::from_pool(Segment& segment, Bytes size) {
  CachedBlock wanted;
  wanted.size = size;
  auto found = segment.free.lower_bound(&wanted);
  if (found == segment.free.end()) {
    return nullptr;
  }
  // A block counts as large as it can become.
  for (auto next = std::next(found);
       next != segment.free.end() && expandable_size(*next) < expandable_size(*found);
       ++next) {
    found = next;
  }
  CachedBlock* block = *found;
  segment.free.erase(found);
  return block;
}

CachedBlock* ExpandableModel::expanded(Segment& segment, Bytes size) {
  CachedBlock* found = nullptr;
  for (const auto& unmapped : segment.unmapped) {
    CachedBlock* block = unmapped.second;
    if (usable(block->before)) {
      block = block->before;
    }
    if (has_space(block, size)) {
      found = block;
      break;
    }
  }
  if (found == nullptr) {
    return nullptr;
  }
  if (!found->mapped) {
    found = map(segment, found, std::min(found->size, size));
  }
  while (found != nullptr && found->size < size) {
    CachedBlock* next = found->after;
    found = map(segment, next, std::min(size - found->size, next->size));
  }
  if (found != nullptr) {
    segment.free.erase(found);
  }
  return found;
}

CachedBlock* ExpandableModel::map(Segment& segment, CachedBlock* block, Bytes size) {
  const Bytes bytes = round_up(size, segment.handle);
  if (effort_.reserved_bytes + bytes > capacity_) {
    return nullptr;
  }
  segment.unmapped.erase(block->at);
  if (block->size > bytes) {
    CachedBlock* rest = cut(block, bytes);
    segment.unmapped[rest->at] = rest;
  }
  block->mapped = true;
  effort_.driver_calls += bytes / segment.handle;
  effort_.reserved_bytes += bytes;
  segment_events_.push_back({static_cast<std::int64_t>(bytes), block->stream});
  effort_.peak_reserved_bytes =
      std::max(effort_.peak_reserved_bytes, effort_.reserved_bytes);
  const Bytes again = std::min(given_back_, bytes);
  given_back_ -= again;
  effort_.remapped_bytes += again;
  block = join(segment, block);
  segment.free.insert(block);
  return block;
}

CachedBlock* ExpandableModel::join(Segment& segment, CachedBlock* block) {
  if (usable(block->after) && block->after->mapped) {
    segment.free.erase(block->after);
    swallow(block);
  }
  if (usable(block->before) && block->before->mapped) {
    block = block->before;
    segment.free.erase(block);
    swallow(block);
  }
  return block;
}

void ExpandableModel::release_cached() {
  ++effort_.flushes;
  for (auto& segment : segments_) {
    const std::vector<CachedBlock*> blocks(segment.second.free.begin(),
                                           segment.second.free.end());
    for (CachedBlock* block : blocks) {
      unmap(segment.second, block);
    }
  }
}

void ExpandableModel::unmap(Segment& segment, CachedBlock* block) {
  const Address begin = round_up(block->at, segment.handle);
  const Address end = round_down(block->at + block->size, segment.handle);
  if (begin >= end) {
    return;
  }
  segment.free.erase(block);
  if (block->at + block->size > end) {
    segment.free.insert(cut(block, end - block->at));
  }
  if (block->at < begin) {
    CachedBlock* rest = cut(block, begin - block->at);
    segment.free.insert(block);
    block = rest;
  }
  const Bytes bytes = end - begin;
  effort_.reserved_bytes -= bytes;
  segment_events_.push_back({-static_cast<std::int64_t>(bytes), block->stream});
  given_back_ += bytes;
  effort_.driver_calls += bytes / segment.handle;
  block->mapped = false;
  if (block->after != nullptr && !block->after->mapped) {
    segment.unmapped.erase(block->after->at);
    swallow(block);
  }
  if (block->before != nullptr && !block->before->mapped) {
    block = block->before;
    swallow(block);
  }
  segment.unmapped[block->at] = block;
}

}  // namespace drivetrain
