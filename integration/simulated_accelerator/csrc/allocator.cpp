#include "allocator.hpp"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "block_pool.hpp"
#include "device_memory.hpp"
#include "health.hpp"
#include "settings.hpp"
#include "streams.hpp"

namespace sim {
namespace {

using c10::CachingAllocator::format_size;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

constexpr std::size_t kRounding = 512;
constexpr std::size_t kPoisonedAtOnce = std::size_t{1} << 16;
constexpr std::size_t kSmallLimit = std::size_t{1} << 20;

// A freed block that streams other than its own still use, and how far they must come.
struct PendingFree {
  std::size_t offset = 0;
  std::vector<std::pair<StreamQueue*, std::uint64_t>> positions{};
};

struct DeviceHeap {
  std::mutex mutex;
  std::unique_ptr<BlockPool> blocks;
  std::map<std::size_t, std::set<std::int64_t>> recorded_streams;
  std::vector<PendingFree> pending;
  std::map<std::int64_t, Owner> captures;  // by stream
  DeviceStats stats;
};

std::array<DeviceHeap, kMaxDevices>& all() {
  static auto& instance = *new std::array<DeviceHeap, kMaxDevices>;
  return instance;
}

// The arrays of the statistics that change with a block.
std::array<StatArray*, 7> stat_arrays(DeviceStats& stats) {
  return {&stats.allocation,      &stats.active,       &stats.segment,
          &stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes,
          &stats.requested_bytes};
}

void change(StatArray& array, std::size_t block_size, std::int64_t amount) {
  const auto pool = static_cast<std::size_t>(
      block_size < kSmallLimit ? StatType::SMALL_POOL : StatType::LARGE_POOL);
  for (std::size_t index : {static_cast<std::size_t>(StatType::AGGREGATE), pool}) {
    if (amount >= 0) {
      array[index].increase(static_cast<std::size_t>(amount));
    } else {
      array[index].decrease(static_cast<std::size_t>(-amount));
    }
  }
}

// The functions below are called with the heap's mutex held.

void update_reserved(DeviceHeap& heap) {
  Stat& reserved =
      heap.stats.reserved_bytes[static_cast<std::size_t>(StatType::AGGREGATE)];
  const auto now = static_cast<std::int64_t>(heap.blocks->reserved_bytes());
  if (now > reserved.current) {
    reserved.increase(static_cast<std::size_t>(now - reserved.current));
    change(heap.stats.segment, 0, 1);
    ++heap.stats.num_device_alloc;
  } else if (now < reserved.current) {
    reserved.decrease(static_cast<std::size_t>(reserved.current - now));
    ++heap.stats.num_device_free;
  }
}

void count_block(DeviceStats& stats, const Block& block, int sign) {
  const auto size = static_cast<std::int64_t>(block.size);
  change(stats.allocation, block.size, sign);
  change(stats.allocated_bytes, block.size, sign * size);
  change(stats.requested_bytes, block.size,
         sign * static_cast<std::int64_t>(block.requested));
}

void count_active(DeviceStats& stats, const Block& block, int sign) {
  change(stats.active, block.size, sign);
  change(stats.active_bytes, block.size, sign * static_cast<std::int64_t>(block.size));
}

void free_block(DeviceHeap& heap, std::size_t offset) {
  count_active(heap.stats, heap.blocks->at(offset), -1);
  heap.blocks->free(offset);
  update_reserved(heap);
}

void process_pending_frees(DeviceHeap& heap) {
  std::erase_if(heap.pending, [&](const PendingFree& pending) {
    for (const auto& [queue, position] : pending.positions) {
      if (!queue->has_passed(position)) return false;
    }
    free_block(heap, pending.offset);
    return true;
  });
}

void give_back_cached(DeviceHeap& heap, int device, bool discard) {
  process_pending_frees(heap);
  heap.blocks->give_to_anybody([](Owner owner) { return owner >= 0; },
                               [&](std::size_t offset, std::size_t size) {
                                 if (discard) discard_pages(device, offset, size);
                               });
  update_reserved(heap);
}

std::optional<std::size_t> take(DeviceHeap& heap, int device, std::size_t requested) {
  if (heap.blocks == nullptr) {
    heap.blocks = std::make_unique<BlockPool>(settings().memory_bytes);
  }
  process_pending_frees(heap);
  const std::int64_t stream = current_stream(device);
  const auto capture = heap.captures.find(stream);
  const Owner owner = capture == heap.captures.end() ? stream : capture->second;
  const std::size_t size = (requested + kRounding - 1) / kRounding * kRounding;
  const auto offset = heap.blocks->take(size, requested, owner);
  if (offset) {
    const Block& block = heap.blocks->at(*offset);
    count_block(heap.stats, block, 1);
    count_active(heap.stats, block, 1);
    update_reserved(heap);
  }
  return offset;
}

[[noreturn]] void raise_out_of_memory(DeviceHeap& heap, int device,
                                      std::size_t requested) {
  ++heap.stats.num_ooms;
  const std::size_t capacity = settings().memory_bytes;
  const std::size_t used = heap.blocks->used_bytes();
  TORCH_CHECK_WITH(OutOfMemoryError, false, "sim out of memory. Tried to allocate ",
                   format_size(requested), ". Device ", device,
                   " has a total capacity of ", format_size(capacity), " of which ",
                   format_size(capacity - used), " is free; ", format_size(used),
                   " is in use.");
}

std::size_t allocate_block(int device, std::size_t requested) {
  DeviceHeap& heap = all()[device];
  {
    std::lock_guard lock(heap.mutex);
    if (const auto offset = take(heap, device, requested)) return *offset;
    ++heap.stats.num_alloc_retries;
    ++heap.stats.num_sync_all_streams;
  }
  // Without the mutex: others free blocks meanwhile, some with Python's lock held.
  synchronize_device(device);
  std::lock_guard lock(heap.mutex);
  give_back_cached(heap, device, /*discard=*/false);
  if (const auto offset = take(heap, device, requested)) return *offset;
  raise_out_of_memory(heap, device, requested);
}

// Reads of what nothing has written give NaN, not a plausible older value.
void poison(int device, char* address, std::size_t size) {
  char* shadow = static_cast<char*>(device_to_shadow(device, address));
  StreamQueue& queue = current_queue(device);
  // Another stream may read it at once. Nobody uses it while its own stream is idle.
  const std::size_t at_once = queue.is_idle() ? std::min(size, kPoisonedAtOnce) : 0;
  std::memset(shadow, 0xFF, at_once);
  if (at_once == size) return;
  queue.push([=] { std::memset(shadow + at_once, 0xFF, size - at_once); });
}

// It never raises: a tensor may be freed on a broken device, in a forked process or
// when the interpreter ends.
void free_address(void* address) {
  if (address == nullptr || is_in_bad_fork()) return;
  const int device = device_of(address);
  if (device < 0) return;
  DeviceHeap& heap = all()[device];
  const auto offset =
      static_cast<std::size_t>(static_cast<char*>(address) - device_base(device));
  std::lock_guard lock(heap.mutex);
  count_block(heap.stats, heap.blocks->at(offset), -1);
  auto recorded = heap.recorded_streams.extract(offset);
  if (recorded.empty()) {
    free_block(heap, offset);
    return;
  }
  PendingFree pending{.offset = offset};
  for (std::int64_t stream : recorded.mapped()) {
    StreamQueue& queue = stream_queue(device, stream);
    pending.positions.emplace_back(&queue, queue.position());
  }
  heap.pending.push_back(std::move(pending));
}

class SimAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    const int device = current_device();
    const c10::Device where(c10::DeviceType::PrivateUse1,
                            static_cast<c10::DeviceIndex>(device));
    if (size == 0) return {nullptr, nullptr, &free_address, where};
    check_launch(device);
    char* address = device_base(device) + allocate_block(device, size);
    if (settings().poison) poison(device, address, size);
    return {address, address, &free_address, where};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_address; }

  void copy_data(void* to, const void* from, std::size_t size) const override {
    current_queue(current_device()).push([to, from, size] {
      std::memcpy(to_shadow(to), to_shadow(from), size);
    });
  }

  bool initialized() override { return is_initialized(); }

  void emptyCache(c10::MempoolId_t) override {
    for (int device = 0; device < device_count(); ++device) {
      if (!is_initialized(device) || is_broken(device)) continue;
      DeviceHeap& heap = all()[device];
      synchronize_device(device);
      std::lock_guard lock(heap.mutex);
      if (heap.blocks) give_back_cached(heap, device, /*discard=*/true);
    }
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    const int device = device_of(data.get());
    if (device < 0 || device != stream.device_index()) return;
    DeviceHeap& heap = all()[device];
    const auto offset =
        static_cast<std::size_t>(static_cast<char*>(data.get()) - device_base(device));
    std::lock_guard lock(heap.mutex);
    if (heap.blocks->at(offset).owner != stream.id()) {
      heap.recorded_streams[offset].insert(stream.id());
    }
  }

  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    DeviceHeap& heap = heap_of(device);
    std::lock_guard lock(heap.mutex);
    return heap.stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    DeviceHeap& heap = heap_of(device);
    std::lock_guard lock(heap.mutex);
    for (StatArray* array : stat_arrays(heap.stats)) {
      for (Stat& stat : *array) stat.reset_accumulated();
    }
    heap.stats.num_alloc_retries = 0;
    heap.stats.num_ooms = 0;
    heap.stats.num_sync_all_streams = 0;
    heap.stats.num_device_alloc = 0;
    heap.stats.num_device_free = 0;
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    DeviceHeap& heap = heap_of(device);
    std::lock_guard lock(heap.mutex);
    for (StatArray* array : stat_arrays(heap.stats)) {
      for (Stat& stat : *array) stat.reset_peak();
    }
  }

  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    DeviceHeap& heap = heap_of(device);
    std::lock_guard lock(heap.mutex);
    const std::size_t total = settings().memory_bytes;
    const std::size_t reserved = heap.blocks ? heap.blocks->reserved_bytes() : 0;
    return {total - reserved, total};
  }

 private:
  static DeviceHeap& heap_of(c10::DeviceIndex device) {
    check_index(device);
    return all()[device];
  }
};

SimAllocator& instance() {
  static SimAllocator& allocator = *new SimAllocator;
  return allocator;
}

}  // namespace

c10::DeviceAllocator* allocator() { return &instance(); }

void begin_capture_pool(int device, std::int64_t stream, std::int64_t pool) {
  std::lock_guard lock(all()[device].mutex);
  all()[device].captures[stream] = owner_of_capture(pool);
}

void end_capture(int device, std::int64_t stream) {
  std::lock_guard lock(all()[device].mutex);
  all()[device].captures.erase(stream);
}

void end_pool(int device, std::int64_t pool) {
  DeviceHeap& heap = all()[device];
  std::lock_guard lock(heap.mutex);
  if (!heap.blocks) return;
  const Owner owner = owner_of_capture(pool);
  heap.blocks->change_owner(owner, kDefaultStream);
  heap.blocks->give_to_anybody([&](Owner it) { return it == owner; },
                               [](std::size_t, std::size_t) {});
  update_reserved(heap);
}

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &instance());

}  // namespace sim
