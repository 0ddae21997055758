// A model of GMLake as it was published: PyTorch's allocator, whose free blocks are
// stitched together under new addresses for very large requests (Guo et al., "GMLake",
// ASPLOS 2024, and its released code).

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "native_model.hpp"
#include "subject.hpp"

namespace drivetrain {

// An event of a recorded stream is taken to be done when its block is freed, which
// favours the model.
class GmlakeModel : public Subject {
 public:
  // Args:
  //   capacity: Of the device, in bytes.
  //   stitched: The smallest request that blocks are stitched for; 512 MiB unless a
  //   user
  //     sets `fragLimit`.
  GmlakeModel(Bytes capacity, Bytes stitched)
      : capacity_(capacity), stitched_(stitched), small_(capacity) {}

  bool allocate(std::uint32_t id, Bytes size, unsigned stream) override;
  void free(std::uint32_t id) override;
  void record_stream(std::uint32_t, unsigned) override {}
  Effort effort() override;

 private:
  using Chunk = std::uint64_t;

  // Several free blocks under one range of addresses. It stays when it is freed.
  struct Stitched {
    std::vector<Chunk> chunks;
    std::uint64_t num_busy = 0;
  };

  // Runs of free chunks of one stream, within a segment each.
  struct Runs {
    std::map<Chunk, std::uint64_t> by_place;
    std::set<std::pair<std::uint64_t, Chunk>> by_length;

    void insert(Chunk first, std::uint64_t count);
    void erase(Chunk first);
    void take(Chunk chunk);
    void release(Chunk chunk);
  };

  struct Pool {
    Runs free;
    std::vector<std::unique_ptr<Stitched>> stitched;
    // First chunk and length of each segment.
    std::map<Chunk, std::uint64_t> segments;
  };

  struct Live {
    unsigned stream;
    std::vector<Chunk> chunks;
  };

  bool allocate_large(std::uint32_t id, std::uint64_t count, unsigned stream);
  std::vector<Chunk> from_run(Pool& pool, std::uint64_t count);
  std::vector<Chunk> from_stitched(Pool& pool, std::uint64_t count);
  std::vector<Chunk> stitch(Pool& pool, std::uint64_t count);
  std::vector<Chunk> from_device(Pool& pool, std::uint64_t count);
  void release_cached();
  void mark(Pool& pool, const std::vector<Chunk>& chunks, bool busy);

  Bytes capacity_;
  Bytes stitched_;
  NativeModel small_;
  Effort effort_;
  Bytes given_back_ = 0;
  Chunk next_ = 1;
  std::map<unsigned, Pool> pools_;
  std::unordered_map<Chunk, std::vector<Stitched*>> views_;
  std::unordered_map<std::uint32_t, Live> live_;
  std::set<std::uint32_t> small_ids_;
};

}  // namespace drivetrain
