// Gives the physical memory of whole arenas back to the device, and brings it again
// below the same addresses.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "arena.hpp"
#include "chunk_pool.hpp"
#include "counters.hpp"
#include "driver/driver.hpp"
#include "history.hpp"
#include "mapper.hpp"

namespace drivetrain {

// What has memory of its own by a tag sleeps and wakes at once. Its live blocks stay
// where they are; nobody may use them meanwhile, and they may be freed.
class Sleeper {
 public:
  using Arenas = std::vector<std::unique_ptr<Arena>>;

  Sleeper(Driver& driver, ChunkPool& pool, Mapper& mapper, const Arenas& arenas,
          Counters& counters, History& history)
      : driver_(driver),
        pool_(pool),
        mapper_(mapper),
        arenas_(arenas),
        counters_(counters),
        history_(history) {}

  bool is_asleep(std::uint64_t tag) const { return asleep_.count(tag) != 0; }
  bool is_any_asleep() const { return !asleep_.empty(); }

  // Returns what has gone back to the device. Nothing may be under way on it, and no
  // stream be captured.
  //
  // Args:
  //   keeps: Whether live blocks have the same contents after `wake`.
  //
  // Throws DriverError, after which the tag is awake as before, or asleep with what the
  // device refused to take.
  Bytes sleep(std::uint64_t tag, bool keeps);

  // Brings back what live blocks need; false where there is too little memory, and the
  // tag sleeps on.
  //
  // Throws DriverError, after which it sleeps on, and has no memory.
  bool wake(std::uint64_t tag, Limits limits);

  // A live block of what sleeps was freed.
  void let_go(const Block* block);

  // What `wake` would take.
  Bytes bytes_to_wake(std::uint64_t tag) const;

 private:
  // Memory of the host with what a live block had in it.
  struct Kept {
    Block* block;
    std::size_t offset;
  };

  // A page of a graph: its replays use what was mapped there, whichever block has it
  // now.
  struct GraphPage {
    Extent* extent;
    std::uint32_t page;
    // The page that holds the chunk.
    PageRef holder;
  };

  struct Contents {
    Contents(Driver& driver, Bytes bytes)
        : driver(driver), memory(bytes == 0 ? nullptr : driver.take_host(bytes)) {}
    ~Contents() { drop(); }
    Contents(const Contents&) = delete;
    Contents& operator=(const Contents&) = delete;

    void drop() {
      if (memory != nullptr) {
        driver.give_host(memory);
      }
      memory = nullptr;
    }

    Driver& driver;
    char* memory;
    // How many blocks live.
    std::size_t num_live = 0;
    std::vector<Kept> blocks;
    std::vector<GraphPage> graph_pages;
  };

  std::vector<Arena*> arenas_of(std::uint64_t tag) const;
  std::unique_ptr<Contents> read(const std::vector<Arena*>& arenas) const;
  std::vector<GraphPage> graph_pages_of(const std::vector<Arena*>& arenas) const;
  // Takes their chunks from all pages. Returns what the device refused, in words.
  std::string give_up_pages(const std::vector<Arena*>& arenas);
  // What lives counts as awake, or no longer.
  void count(const std::vector<Arena*>& arenas, bool awake);
  void note(Action action, const std::vector<Arena*>& arenas);
  // Maps the chunks of graphs at the other addresses that they had.
  void map_again(const std::vector<GraphPage>& pages);
  std::vector<Missing> missing_of(std::uint64_t tag) const;

  Driver& driver_;
  ChunkPool& pool_;
  Mapper& mapper_;
  const Arenas& arenas_;
  Counters& counters_;
  History& history_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Contents>> asleep_;
};

}  // namespace drivetrain
