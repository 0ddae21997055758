// A model of PyTorch's caching allocator with its default settings (torch 2.13,
// c10/cuda/CUDACachingAllocator.cpp).

#pragma once

#include <map>
#include <unordered_map>

#include "cached_blocks.hpp"
#include "subject.hpp"

namespace drivetrain {

// An event of a recorded stream is taken to be done when its block is freed, which
// favours the model.
class NativeModel : public Subject {
 public:
  explicit NativeModel(Bytes capacity) : capacity_(capacity) {}
  ~NativeModel() override;

  bool allocate(std::uint32_t id, Bytes size, unsigned stream) override;
  void free(std::uint32_t id) override;
  void record_stream(std::uint32_t, unsigned) override {}
  Effort effort() override { return effort_; }
  std::vector<SegmentEvent> segment_events() override { return segment_events_; }

  // It reserves no more than this from now on.
  void limit(Bytes capacity) { capacity_ = capacity; }

 private:
  using Key = std::pair<unsigned, bool>;

  CachedBlock* from_pool(Bytes size, Key key);
  CachedBlock* new_segment(Bytes size, Key key);
  void release_cached();

  Bytes capacity_;
  Effort effort_;
  std::vector<SegmentEvent> segment_events_;
  Bytes given_back_ = 0;
  Address next_ = Address{1} << 40;
  std::map<Key, CachedPool> pools_;
  std::unordered_map<std::uint32_t, CachedBlock*> live_;
};

}  // namespace drivetrain
