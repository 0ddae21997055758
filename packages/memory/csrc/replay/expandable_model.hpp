// A model of PyTorch's caching allocator with expandable segments (torch 2.13,
// c10/cuda/CUDACachingAllocator.cpp).

#pragma once

#include <map>
#include <unordered_map>
#include <utility>

#include "cached_blocks.hpp"
#include "subject.hpp"

namespace drivetrain {

// An event of a recorded stream is taken to be done when its block is freed, which
// favours the model.
class ExpandableModel : public Subject {
 public:
  // Args:
  //   capacity: Of the device, in bytes.
  //   handle: What is mapped at a time for large requests; 20 MiB unless a user sets
  //     `large_segment_size_mb`.
  explicit ExpandableModel(Bytes capacity, Bytes handle = Bytes{20} << 20)
      : capacity_(capacity), handle_(handle) {}
  ~ExpandableModel() override;

  bool allocate(std::uint32_t id, Bytes size, unsigned stream) override;
  void free(std::uint32_t id) override;
  void record_stream(std::uint32_t, unsigned) override {}
  Effort effort() override { return effort_; }
  std::vector<SegmentEvent> segment_events() override { return segment_events_; }

 private:
  using Key = std::pair<unsigned, bool>;

  // The one segment of a stream's small or large blocks.
  struct Segment {
    Bytes handle = 0;
    CachedBlock* first = nullptr;
    CachedPool free;
    // By address.
    std::map<Address, CachedBlock*> unmapped;
  };

  Segment& segment_of(Key key);
  CachedBlock* from_pool(Segment& segment, Bytes size);
  CachedBlock* expanded(Segment& segment, Bytes size);
  // Maps the beginning of an unmapped block; returns the free block that it became part
  // of, null when there is no memory.
  CachedBlock* map(Segment& segment, CachedBlock* block, Bytes size);
  CachedBlock* join(Segment& segment, CachedBlock* block);
  void release_cached();
  void unmap(Segment& segment, CachedBlock* block);

  Bytes capacity_;
  Bytes handle_;
  Effort effort_;
  std::vector<SegmentEvent> segment_events_;
  Bytes given_back_ = 0;
  Address next_ = Address{1} << 40;
  std::map<Key, Segment> segments_;
  std::unordered_map<std::uint32_t, CachedBlock*> live_;
};

}  // namespace drivetrain
