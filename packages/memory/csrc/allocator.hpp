// The allocator: blocks from arenas, and pages that move where a request needs them.

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arena.hpp"
#include "block_store.hpp"
#include "block_table.hpp"
#include "chunk_pool.hpp"
#include "chunk_supply.hpp"
#include "counters.hpp"
#include "descriptor.hpp"
#include "driver/driver.hpp"
#include "history.hpp"
#include "lease.hpp"
#include "lock.hpp"
#include "mapper.hpp"
#include "options.hpp"
#include "process_state.hpp"
#include "shared.hpp"
#include "sleep.hpp"
#include "stream_clock.hpp"

namespace drivetrain {

// Which memory of a stream.
struct PoolKey {
  constexpr PoolKey(std::uint64_t of_graph = 0, std::uint64_t of_tag = 0)
      : graph(of_graph), tag(of_tag) {}

  // The graph or pool that it is private to; 0 for none.
  std::uint64_t graph;
  // What it sleeps and wakes with; 0 for none.
  std::uint64_t tag;

  friend bool operator==(const PoolKey& a, const PoolKey& b) {
    return ((a.graph ^ b.graph) | (a.tag ^ b.tag)) == 0;
  }
};

// One device. Safe to use from any thread.
class Allocator {
 public:
  // Args:
  //   driver: The device; outlives the allocator.
  //   options: What the user asks for.
  //   process: What it shares with others.
  //
  // Throws MisuseError for options that make no sense.
  Allocator(Driver& driver, Options options,
            std::shared_ptr<ProcessState> process = std::make_shared<ProcessState>());
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // Returns memory of at least `size` bytes for work on `stream`; 0 for no bytes.
  //
  // Args:
  //   pool: Which memory it is.
  //
  // Throws OutOfMemory when it does not fit, whatever is joined.
  Address allocate(Bytes size, Stream stream, PoolKey pool = {});

  // Throws MisuseError for an address that is not live.
  void free(Address at);

  // Work on another stream uses the memory too: it is not given to a next tenant
  // before. The address may lie inside a block.
  //
  // Throws MisuseError when no live block holds it.
  void record_stream(Address at, Stream stream);

  // The memory of a graph pool is everybody's again.
  void release_graph(std::uint64_t graph);

  // Gives the physical memory of a tag back to the device. What is live stays where it
  // is, but may not be used until it wakes; what is freed meanwhile needs no memory
  // then. The host waits for the device. Returns the bytes.
  //
  // Args:
  //   keeps: Whether memory has the same contents after `wake`; it lies with the host.
  //
  // Throws MisuseError when it sleeps already, a graph is captured, or other processes
  // have some of it.
  Bytes sleep(std::uint64_t tag, bool keeps);

  // Throws MisuseError when it does not sleep or a graph is captured, OutOfMemory when
  // the device has too little, after which it sleeps on.
  void wake(std::uint64_t tag);

  bool is_asleep(std::uint64_t tag);

  // Gives back to the device every chunk that no block lives on. The host waits for the
  // streams that used them, but for those that are being captured.
  void trim();

  // No more than this is reserved from now on; what is reserved already stays.
  //
  // Throws MisuseError for less than a chunk.
  void limit(Bytes capacity);

  // Whether an address lies in what the allocator reserved.
  bool owns(Address at);

  Counters counters();
  // The peaks begin anew with what there is.
  void reset_peaks();

  // The address and size of the live block that an address lies in, if there is one.
  std::optional<std::pair<Address, Bytes>> block_around(Address at);

  // Calls f(block) for every block that is live, pending or free, by address in each
  // extent. The allocator must not be called meanwhile.
  template <class F>
  void each_block(F f) {
    const std::lock_guard<Lock> lock(lock_);
    for (const auto& arena : arenas_) {
      for (const auto& extent : arena->extents()) {
        for (const Block* block = extent->first; block != nullptr;
             block = block->after) {
          if (block->kind() != Kind::kHole && block->kind() != Kind::kClaimed) {
            f(*block);
          }
        }
      }
    }
  }

  // Lets one more process have the block that holds an address, by `SharedMemory`. What
  // is freed meanwhile has a next tenant when no other process has it any more.
  //
  // Throws MisuseError when no live block that is awake holds the address, DriverError
  // when the device shares nothing.
  Shared share(Address at);

  // Keeps the last entries of what happens, from now on; none for 0.
  void keep_history(std::size_t most);
  std::vector<HistoryEntry> history();

 private:
  Block* live_around(Address at);

  // The arenas of one stream, or of one graph pool on it.
  struct StreamPool {
    Stream stream;
    PoolKey key;
    Arena* small;
    Arena* large;
  };

  struct Pending {
    Block* block;
    std::vector<Ticket> users;
    // Streams that could give no event yet.
    std::vector<StreamClock*> captured;
  };

  // A block that other processes have, or had.
  struct Lent {
    std::deque<Descriptor> chunks;
    // Ended first: who holds it finds the chunks.
    Lease lease;
  };

  StreamPool& stream_pool_of(Stream stream, PoolKey key);
  // An arena of a graph that is gone, if nobody uses any of it; else null.
  Arena* abandoned(const StreamClock& clock, std::uint64_t tag, bool large);
  StreamClock& clock_of(Stream stream);
  // A block that waits for the streams that use it.
  Pending marked(Block* block);
  // A block that serves a request, or null where memory is short.
  Block* find(Arena& arena, Bytes rounded);
  Block* remap_free_chunks(Arena& arena, Bytes size);
  // A request of a size that was put together before.
  Block* reuse_layout(Arena& arena, Bytes size);
  // Blocks whose other streams are done become free; with `wait`, their own streams
  // wait for the others. Returns whether there were any.
  bool process_pending_frees(bool wait);
  bool is_unused(Pending& pending, bool wait);
  void release(Block* block);
  void free_asleep(Block* block);
  // Whether another process has the block, or is still to take it.
  bool is_lent(const Block* block);
  // Whether another process has some of a tag's memory.
  bool lends(std::uint64_t tag);
  // What is lent of a block from now on.
  Lent& lend(Block* block);
  // Closes the descriptors of what no other process has any more. Returns whether there
  // were any.
  bool end_leases();
  void destroy_free_chunks();
  // Finds out that streams that were destroyed are done, if any were; the host waits.
  bool finish_gone_streams();
  // Nothing is under way any more. Throws MisuseError while a graph is captured.
  void await_all();
  [[noreturn]] void refuse_asleep(std::uint64_t tag) const;
  // Leaves the driver memory of its own, unless a graph is captured.
  void give_back();
  void note(Action action, const Block& block);
  Limits limits(Bytes coming) const;
  // Args:
  //   wish: What was asked for, in words.
  [[noreturn]] void refuse(const std::string& wish, Bytes size, Stream stream,
                           const std::string& driver = {});

  Driver& driver_;
  Options options_;
  std::shared_ptr<ProcessState> process_;
  Bytes chunk_;
  std::uint64_t hard_limit_;
  Lock lock_;
  Counters counters_;
  History history_;
  BlockStore store_;
  BlockTable live_;
  ChunkPool pool_;
  std::unordered_map<Stream, std::unique_ptr<StreamClock>> clocks_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<StreamPool> stream_pools_;
  std::size_t last_stream_pool_ = 0;
  ChunkSupply supply_;
  Mapper mapper_;
  Sleeper sleeper_;
  // Streams that use a live block beside its own, and freed blocks that they still use.
  std::unordered_map<Block*, std::vector<StreamClock*>> users_;
  std::unordered_map<const Block*, Lent> lent_;
  std::vector<Pending> pending_;
};

}  // namespace drivetrain
