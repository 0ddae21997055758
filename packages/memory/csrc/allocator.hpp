// The allocator: blocks from arenas, and pages that move where a request needs them.

#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "arena.hpp"
#include "block_store.hpp"
#include "block_table.hpp"
#include "chunk_pool.hpp"
#include "counters.hpp"
#include "driver/driver.hpp"
#include "lock.hpp"
#include "options.hpp"
#include "stream_clock.hpp"
#include "supply.hpp"
#include "window.hpp"

namespace drivetrain {

// One device. Safe to use from any thread.
class Allocator {
 public:
  // Args:
  //   driver: The device; outlives the allocator.
  //   options: What the user asks for.
  //
  // Throws MisuseError for options that make no sense.
  Allocator(Driver& driver, Options options);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // Returns memory of at least `size` bytes for work on `stream`; 0 for no bytes.
  //
  // Args:
  //   graph: The graph pool that the memory is private to; 0 for none.
  //
  // Throws OutOfMemory when it does not fit, whatever is joined.
  Address allocate(Bytes size, Stream stream, std::uint64_t graph = 0);

  // Throws MisuseError for an address that is not live.
  void free(Address at);

  // Work on another stream uses the memory too: it is not given to a next tenant
  // before.
  void record_stream(Address at, Stream stream);

  // The memory of a graph pool is everybody's again.
  void release_graph(std::uint64_t graph);

  // Gives back to the device every chunk that no block lives on. The host waits for the
  // streams that used them.
  void trim();

  Counters counters();

 private:
  struct Home {
    Stream stream;
    std::uint64_t graph;
    Arena* small;
    Arena* large;
  };

  struct Pending {
    Block* block;
    std::vector<Ticket> users;
  };

  Home& home_of(Stream stream, std::uint64_t graph);
  StreamClock& clock_of(Stream stream);
  Block* make_room(Arena& arena, Bytes size);
  Window find_window(Arena& arena, Bytes size, std::uint64_t survey, bool capturing);
  std::vector<double> page_costs(const Extent& extent, std::uint64_t survey,
                                 std::uint64_t passed);
  // A live block in a window; null when there are too few chunks.
  Block* fill(Arena& arena, const Window& window, Bytes size, bool capturing,
              std::uint64_t survey);
  // Blocks whose other streams are done become free; with `wait`, their own streams
  // wait for the others. Returns whether there were any.
  bool settle(bool wait);
  void give(Block* block);
  void make_mappable(std::size_t count);
  Limits limits(Bytes coming) const;
  [[noreturn]] void refuse(Bytes size);

  Driver& driver_;
  Options options_;
  Bytes chunk_;
  std::uint64_t hard_limit_;
  std::uint64_t mapped_limit_;
  Lock lock_;
  Counters counters_;
  BlockStore store_;
  BlockTable live_;
  ChunkPool pool_;
  std::unordered_map<Stream, std::unique_ptr<StreamClock>> clocks_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<Home> homes_;
  std::size_t last_home_ = 0;
  Supply supply_;
  // Streams that use a live block beside its own, and freed blocks that they still use.
  std::unordered_map<Block*, std::vector<StreamClock*>> users_;
  std::vector<Pending> pending_;
};

}  // namespace drivetrain
