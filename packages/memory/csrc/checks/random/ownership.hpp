// Whose every byte of physical memory is, and which work still uses it.
//
// Two live blocks never share memory. Work of a block never runs while work is left
// that an earlier block gave for the same memory. What a block's work wrote is what its
// later work reads. All of this is checked where the work runs, by what is mapped then.

#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "../../units.hpp"
#include "../strict/control.hpp"

namespace drivetrain {

// What is wrong, of all threads.
class Findings {
 public:
  // Where an operation belongs that is wrong, to be tried again.
  void begin_episode(std::uint64_t episode) { episode_ = episode; }
  void complain(const std::string& what);
  std::uint64_t count();
  // The first of each episode, for the first few.
  std::vector<std::string> first();

 private:
  static constexpr std::size_t kMost = 20;

  std::mutex mutex_;
  std::uint64_t episode_ = 0;
  std::uint64_t last_ = ~std::uint64_t{0};
  std::uint64_t count_ = 0;
  std::vector<std::string> first_;
};

// Part of a block within one allocation of the driver.
struct Piece {
  Address at;
  std::uint64_t memory;
  Bytes begin;
  Bytes end;
};

struct Tenant {
  std::uint64_t name = 0;
  Address at = 0;
  Bytes size = 0;
  int device = 0;
  // The stream: its name, its place among those of its thread, and which of its lives.
  std::uint64_t stream = 0;
  std::size_t slot = 0;
  std::uint64_t life = 0;
  // The graph whose memory it is; 0 for none.
  std::uint64_t graph = 0;
  // What it sleeps with; 0 for nothing.
  std::uint64_t tag = 0;
  // Whether its first work was given, which writes.
  bool written = false;
  std::vector<Piece> pieces;
};

using TenantRef = std::shared_ptr<Tenant>;

// Work of a block: it writes the block's pattern, or compares.
struct Task {
  TenantRef tenant;
  bool writes = false;
  std::uint64_t order = 0;
  std::vector<Piece> pieces;
};

// What of a block is written and compared.
enum class Fill { kNothing, kEnds, kAll };

// Every function but the constructor is called under the mutex of the double.
class Ownership {
 public:
  Ownership(Findings& findings, Fill fill) : findings_(findings), fill_(fill) {}

  // A block lives, with the memory that lies below it now; it dies.
  void own(const strict::State& now, Tenant& tenant);
  void disown(const Tenant& tenant);

  // Work is given to a stream; for a graph that is launched, with what is mapped by
  // now.
  void give(const strict::State& now, Task& task);
  // It runs.
  void run(const strict::State& now, const Task& task);

 private:
  struct Owner {
    Bytes begin;
    Bytes end;
    const Tenant* tenant;
  };
  struct Use {
    Bytes begin;
    Bytes end;
    const Tenant* tenant;
    std::uint64_t order;
  };
  struct Sheet {
    std::vector<Owner> owners;
    std::vector<Use> uses;
  };

  std::vector<Piece> pieces_of(const strict::State& now, const Tenant& tenant);
  void touch(const Task& task, const Piece& piece);
  void drop_if_empty(std::uint64_t memory);

  Findings& findings_;
  Fill fill_;
  std::unordered_map<std::uint64_t, Sheet> sheets_;
  std::uint64_t next_order_ = 1;
};

}  // namespace drivetrain
