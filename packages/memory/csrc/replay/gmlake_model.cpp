#include "gmlake_model.hpp"

#include <algorithm>
#include <iterator>

namespace drivetrain {

namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kChunk = 2 * kMiB;
constexpr Bytes kLargeSegment = 20 * kMiB;
constexpr Bytes kLargeRequest = 10 * kMiB;
// A stitched block that is larger by this factor is not used for a request.
constexpr std::uint64_t kReuseLimit = 10;

}  // namespace

void GmlakeModel::Runs::insert(Chunk first, std::uint64_t count) {
  by_place[first] = count;
  by_length.insert({count, first});
}

void GmlakeModel::Runs::erase(Chunk first) {
  by_length.erase({by_place.at(first), first});
  by_place.erase(first);
}

void GmlakeModel::Runs::take(Chunk chunk) {
  const auto run = std::prev(by_place.upper_bound(chunk));
  const auto [first, count] = *run;
  erase(first);
  if (chunk > first) {
    insert(first, chunk - first);
  }
  if (chunk + 1 < first + count) {
    insert(chunk + 1, first + count - chunk - 1);
  }
}

void GmlakeModel::Runs::release(Chunk chunk) {
  Chunk first = chunk;
  std::uint64_t count = 1;
  const auto after = by_place.find(chunk + 1);
  if (after != by_place.end()) {
    count += after->second;
    erase(chunk + 1);
  }
  const auto behind = by_place.lower_bound(chunk);
  if (behind != by_place.begin()) {
    const auto before = *std::prev(behind);
    if (before.first + before.second == chunk) {
      first = before.first;
      count += before.second;
      erase(before.first);
    }
  }
  insert(first, count);
}

bool GmlakeModel::allocate(std::uint32_t id, Bytes size, unsigned stream) {
  if (size > kSmallLimit) {
    return allocate_large(id, ceil_div(size, kChunk), stream);
  }
  small_.limit(capacity_ - effort_.reserved_bytes);
  if (!small_.allocate(id, size, stream)) {
    release_cached();
    small_.limit(capacity_ - effort_.reserved_bytes);
    if (!small_.allocate(id, size, stream)) {
      return false;
    }
  }
  small_ids_.insert(id);
  return true;
}

void GmlakeModel::free(std::uint32_t id) {
  if (small_ids_.erase(id) > 0) {
    small_.free(id);
    return;
  }
  const auto found = live_.find(id);
  mark(pools_[found->second.stream], found->second.chunks, false);
  live_.erase(found);
}

Effort GmlakeModel::effort() {
  const Effort of_small = small_.effort();
  Effort sum = effort_;
  sum.reserved_bytes += of_small.reserved_bytes;
  sum.peak_reserved_bytes += of_small.peak_reserved_bytes;
  sum.remapped_bytes += of_small.remapped_bytes;
  sum.driver_calls += of_small.driver_calls;
  sum.flushes += of_small.flushes;
  return sum;
}

bool GmlakeModel::allocate_large(std::uint32_t id, std::uint64_t count,
                                 unsigned stream) {
  Pool& pool = pools_[stream];
  std::vector<Chunk> chunks = from_run(pool, count);
  if (chunks.empty()) {
    chunks = from_stitched(pool, count);
  }
  if (chunks.empty()) {
    chunks = stitch(pool, count);
  }
  if (chunks.empty()) {
    chunks = from_device(pool, count);
  }
  if (chunks.empty()) {
    release_cached();
    chunks = from_device(pool, count);
  }
  if (chunks.empty()) {
    return false;
  }
  mark(pool, chunks, true);
  live_[id] = {stream, std::move(chunks)};
  return true;
}

std::vector<GmlakeModel::Chunk> GmlakeModel::from_run(Pool& pool, std::uint64_t count) {
  const auto found = pool.free.by_length.lower_bound({count, 0});
  std::vector<Chunk> chunks;
  for (std::uint64_t i = 0; found != pool.free.by_length.end() && i < count; ++i) {
    chunks.push_back(found->second + i);
  }
  return chunks;
}

std::vector<GmlakeModel::Chunk> GmlakeModel::from_stitched(Pool& pool,
                                                           std::uint64_t count) {
  const Stitched* best = nullptr;
  for (const auto& one : pool.stitched) {
    const std::uint64_t size = one->chunks.size();
    const bool fits = size >= count && size <= kReuseLimit * count;
    if (one->num_busy == 0 && fits && (best == nullptr || size < best->chunks.size())) {
      best = one.get();
    }
  }
  if (best == nullptr) {
    return {};
  }
  return {best->chunks.begin(),
          best->chunks.begin() + static_cast<std::ptrdiff_t>(count)};
}

std::vector<GmlakeModel::Chunk> GmlakeModel::stitch(Pool& pool, std::uint64_t count) {
  if (count * kChunk < stitched_) {
    return {};
  }
  std::vector<Chunk> chunks;
  for (auto run = pool.free.by_length.rbegin();
       run != pool.free.by_length.rend() && chunks.size() < count; ++run) {
    const std::uint64_t wanted =
        std::min<std::uint64_t>(run->first, count - chunks.size());
    for (std::uint64_t i = 0; i < wanted; ++i) {
      chunks.push_back(run->second + i);
    }
  }
  if (chunks.size() < count) {
    return {};
  }
  pool.stitched.push_back(std::make_unique<Stitched>());
  pool.stitched.back()->chunks = chunks;
  for (const Chunk chunk : chunks) {
    views_[chunk].push_back(pool.stitched.back().get());
  }
  // Each chunk is mapped, and made accessible, by calls of its own.
  effort_.driver_calls += 1 + 2 * count;
  effort_.remapped_bytes += count * kChunk;
  return chunks;
}

std::vector<GmlakeModel::Chunk> GmlakeModel::from_device(Pool& pool,
                                                         std::uint64_t count) {
  const Bytes bytes = count * kChunk < kLargeRequest ? kLargeSegment : count * kChunk;
  if (effort().reserved_bytes + bytes > capacity_) {
    return {};
  }
  const std::uint64_t length = bytes / kChunk;
  const Bytes again = std::min(given_back_, bytes);
  given_back_ -= again;
  effort_.remapped_bytes += again;
  effort_.driver_calls += 1 + 3 * length;
  effort_.reserved_bytes += bytes;
  effort_.peak_reserved_bytes =
      std::max(effort_.peak_reserved_bytes, effort_.reserved_bytes);
  pool.segments[next_] = length;
  pool.free.insert(next_, length);
  std::vector<Chunk> chunks;
  for (std::uint64_t i = 0; i < count; ++i) {
    chunks.push_back(next_ + i);
  }
  // Runs of two segments never touch.
  next_ += length + 1;
  return chunks;
}

void GmlakeModel::release_cached() {
  ++effort_.flushes;
  for (auto& [stream, pool] : pools_) {
    (void)stream;
    for (auto segment = pool.segments.begin(); segment != pool.segments.end();) {
      const auto [first, length] = *segment;
      const auto run = pool.free.by_place.find(first);
      if (run == pool.free.by_place.end() || run->second != length) {
        ++segment;
        continue;
      }
      std::set<const Stitched*> gone;
      for (Chunk chunk = first; chunk < first + length; ++chunk) {
        gone.insert(views_[chunk].begin(), views_[chunk].end());
      }
      for (const Stitched* view : gone) {
        for (const Chunk chunk : view->chunks) {
          std::vector<Stitched*>& views = views_[chunk];
          views.erase(std::find(views.begin(), views.end(), view));
        }
        const auto same = [&](const auto& one) { return one.get() == view; };
        pool.stitched.erase(
            std::find_if(pool.stitched.begin(), pool.stitched.end(), same));
      }
      pool.free.erase(first);
      effort_.reserved_bytes -= length * kChunk;
      given_back_ += length * kChunk;
      effort_.driver_calls += 2 * length;
      segment = pool.segments.erase(segment);
    }
  }
}

void GmlakeModel::mark(Pool& pool, const std::vector<Chunk>& chunks, bool busy) {
  for (const Chunk chunk : chunks) {
    if (busy) {
      pool.free.take(chunk);
    } else {
      pool.free.release(chunk);
    }
    const auto views = views_.find(chunk);
    if (views != views_.end()) {
      for (Stitched* view : views->second) {
        view->num_busy += busy ? 1 : -1;
      }
    }
  }
}

}  // namespace drivetrain
