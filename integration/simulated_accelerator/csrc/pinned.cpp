#include "pinned.hpp"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "settings.hpp"
#include "streams.hpp"

namespace sim {
namespace {

constexpr std::size_t kAlignment = 64;

struct PinnedBlock {
  std::size_t size = 0;
  std::map<StreamQueue*, std::uint64_t> uses{};
};

struct FreeBlock {
  char* address = nullptr;
  PinnedBlock block;
};

struct PinnedHeap {
  std::mutex mutex;
  std::map<char*, PinnedBlock> used;
  // Blocks are kept for their size, as CUDA's are: a reuse that comes too early is
  // then likely, not rare.
  std::vector<FreeBlock> free;
  std::atomic<bool> reuse_waits{true};
  at::HostStats stats;
};

PinnedHeap& heap() {
  static PinnedHeap& instance = *new PinnedHeap;
  return instance;
}

// Called with the mutex held.
std::map<char*, PinnedBlock>::iterator find(const void* address) {
  auto& used = heap().used;
  auto block = used.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  if (block == used.begin()) return used.end();
  --block;
  const bool inside = address < block->first + block->second.size;
  return inside ? block : used.end();
}

bool is_ready(const PinnedBlock& block) {
  for (const auto& [queue, position] : block.uses) {
    if (!queue->has_passed(position)) return false;
  }
  return true;
}

char* reuse(std::size_t size) {
  PinnedHeap& pinned = heap();
  // The one that was freed last comes first.
  for (std::size_t i = pinned.free.size(); i-- > 0;) {
    const FreeBlock& it = pinned.free[i];
    if (it.block.size != size) continue;
    if (pinned.reuse_waits && !is_ready(it.block)) continue;
    char* address = it.address;
    pinned.free.erase(pinned.free.begin() + static_cast<std::ptrdiff_t>(i));
    return address;
  }
  return nullptr;
}

void free_pinned(void* address) {
  if (address == nullptr || is_in_bad_fork()) return;
  PinnedHeap& pinned = heap();
  std::lock_guard lock(pinned.mutex);
  auto block = pinned.used.extract(static_cast<char*>(address));
  if (block.empty()) return;
  pinned.stats.active_requests.decrease(1);
  pinned.stats.active_bytes.decrease(block.mapped().size);
  pinned.free.push_back({block.key(), std::move(block.mapped())});
}

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    TORCH_CHECK(settings().pinned_memory,
                "this simulated device has no pinned memory: its setting "
                "pinned_memory is off");
    if (size == 0) return {nullptr, nullptr, &free_pinned, c10::Device(c10::kCPU)};
    const std::size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
    std::lock_guard lock(heap().mutex);
    char* address = reuse(rounded);
    if (address == nullptr) address = allocate_new(rounded);
    heap().used[address] = {.size = rounded};
    heap().stats.active_requests.increase(1);
    heap().stats.active_bytes.increase(rounded);
    return {address, address, &free_pinned, c10::Device(c10::kCPU)};
  }

  bool record_event(void* address, void*, c10::Stream stream) override {
    if (!is_pinned(address)) return false;
    record_pinned_use(address, stream_queue(stream.device_index(), stream.id()));
    return true;
  }

  void empty_cache() override {
    std::lock_guard lock(heap().mutex);
    std::erase_if(heap().free, [](const FreeBlock& it) {
      if (!is_ready(it.block)) return false;
      std::free(it.address);
      heap().stats.allocations.decrease(1);
      heap().stats.allocated_bytes.decrease(it.block.size);
      ++heap().stats.num_host_free;
      return true;
    });
  }

  at::HostStats get_stats() override {
    std::lock_guard lock(heap().mutex);
    return heap().stats;
  }

  void reset_accumulated_stats() override {
    std::lock_guard lock(heap().mutex);
    for (c10::CachingAllocator::Stat* stat : stats()) stat->reset_accumulated();
  }

  void reset_peak_stats() override {
    std::lock_guard lock(heap().mutex);
    for (c10::CachingAllocator::Stat* stat : stats()) stat->reset_peak();
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }

  void copy_data(void* to, const void* from, std::size_t size) const override {
    default_copy_data(to, from, size);
  }

 private:
  static char* allocate_new(std::size_t size) {
    auto* address = static_cast<char*>(std::aligned_alloc(kAlignment, size));
    TORCH_CHECK(address != nullptr, "there is no host memory for ", size,
                " pinned bytes");
    heap().stats.allocations.increase(1);
    heap().stats.allocated_bytes.increase(size);
    ++heap().stats.num_host_alloc;
    return address;
  }

  static std::array<c10::CachingAllocator::Stat*, 4> stats() {
    at::HostStats& all = heap().stats;
    return {&all.active_requests, &all.active_bytes, &all.allocations,
            &all.allocated_bytes};
  }
};

PinnedAllocator& instance() {
  static PinnedAllocator& allocator = *new PinnedAllocator;
  return allocator;
}

}  // namespace

c10::Allocator* pinned_allocator() { return &instance(); }

bool is_pinned(const void* address) {
  if (is_in_bad_fork()) return false;
  std::lock_guard lock(heap().mutex);
  return find(address) != heap().used.end();
}

void record_pinned_use(const void* address, StreamQueue& queue) {
  std::lock_guard lock(heap().mutex);
  const auto block = find(address);
  if (block != heap().used.end()) block->second.uses[&queue] = queue.position();
}

bool register_pinned(void* address, std::size_t size) {
  if (!settings().pinned_memory) return false;
  auto* first = static_cast<char*>(address);
  std::lock_guard lock(heap().mutex);
  const auto next = heap().used.lower_bound(first);
  const bool reaches_next = next != heap().used.end() && next->first < first + size;
  if (reaches_next || find(address) != heap().used.end()) return false;
  heap().used[first] = {.size = size};
  return true;
}

bool unregister_pinned(void* address) {
  std::lock_guard lock(heap().mutex);
  return heap().used.erase(static_cast<char*>(address)) != 0;
}

void set_pinned_reuse_waits(bool waits) { heap().reuse_waits = waits; }

REGISTER_HOST_ALLOCATOR(at::DeviceType::PrivateUse1, &instance())

}  // namespace sim
