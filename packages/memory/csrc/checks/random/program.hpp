// A random program that obeys the rules: blocks on streams, graphs, streams that come
// and go. One thread's part of an episode.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "../../allocator.hpp"
#include "../../driver/cuda_driver.hpp"
#include "../../error.hpp"
#include "ownership.hpp"

namespace drivetrain {

// The functions of the driver whose refusal an allocator must survive.
constexpr std::array<const char*, 15> kRefusable = {
    "cuMemCreate",       "cuMemRelease",       "cuMemMap",
    "cuMemUnmap",        "cuMemSetAccess",     "cuMemAddressReserve",
    "cuEventCreate",     "cuEventRecord",      "cuEventQuery",
    "cuStreamWaitEvent", "cuEventSynchronize", "cuStreamIsCapturing",
    "cuCtxSynchronize",  "cuMemGetInfo",       "cuCtxPushCurrent",
};

// Each thread has memory that sleeps, with a tag of its own from this on.
constexpr std::uint64_t kFirstTag = 100;

// How an episode is.
struct Conditions {
  int num_devices = 1;
  std::uint64_t num_chunks = 32;
  Bytes slack = 0;
  Options options;
  bool captures = false;
  // Streams are destroyed and made.
  bool external = false;
  // Memory goes back to the device for a while, and comes again.
  bool sleeps = false;
  // Others take memory of the devices, and limits are set.
  bool others = false;
  // Work waits for what is given to another stream later. There is memory for all.
  bool ahead = false;
  // Calls of the driver are refused: one at a time, or a share of them.
  bool one_refusal = false;
  std::uint64_t refused_share = 0;

  bool refuses() const { return one_refusal || refused_share > 0; }
};

// What happened, so that a test sees that it did.
struct Happened {
  std::uint64_t operations = 0;
  std::uint64_t out_of_memory = 0;
  std::uint64_t refused = 0;
  std::uint64_t graphs = 0;
  std::uint64_t launches = 0;
  std::uint64_t shared = 0;
  std::uint64_t destroyed_streams = 0;
  std::uint64_t gates = 0;
  std::uint64_t sleeps = 0;

  void add(const Happened& other);
};

// What the threads of an episode have in common.
struct Episode {
  const Conditions& conditions;
  Findings& findings;
  Ownership& ownership;
  std::shared_ptr<ProcessState> process;
  std::vector<std::unique_ptr<Allocator>> allocators;
  std::atomic<std::uint64_t>& progress;
  std::atomic<std::uint64_t> next_name{1};
  // Blocks that another thread is to free.
  std::mutex mutex;
  std::vector<TenantRef> handed_over;
};

class Program {
 public:
  // Args:
  //   thread: Its number; streams are each thread's own, but for the legacy one of the
  //     first.
  Program(Episode& episode, unsigned thread, std::uint64_t seed);

  void run(std::uint64_t operations);
  // Ends captures, and gives back all that lives.
  void end();

  const Happened& happened() const { return happened_; }

 private:
  struct Slot {
    strict::U64 handle;
    int device;
    bool external;
    bool blocking;
    bool alive;
    std::uint64_t life;
    strict::StreamId id;
    // The graph that it is captured into; 0 for none.
    std::uint64_t graph;
  };

  struct Recorded {
    TenantRef tenant;
    bool writes;
  };

  // A graph, being captured or captured, on one stream or two.
  struct Graph {
    std::uint64_t id;
    strict::U64 capture;
    bool captured;
    std::vector<std::size_t> slots;
    std::vector<std::uint64_t> lives;
    // The work on each of its streams.
    std::vector<std::vector<Recorded>> tasks;
  };

  void make_slots(unsigned thread);
  void open(Slot& slot);

  void operate();
  void allocate();
  void free_any();
  void free(const TenantRef& tenant);
  void use_any();
  void share_any();
  void look_up();
  void change_graphs();
  void begin_capture();
  void end_capture(Graph& graph);
  void launch(Graph& graph);
  void release(std::size_t index);
  void change_stream();
  void change_limits();
  void change_sleep();
  void fall_asleep(int device);
  void wake_up();
  bool is_asleep(const Tenant& tenant) const;
  void change_gates();
  void open_gate();
  void find_hangs();
  void arm_refusal();

  // Calls the allocator; what it throws is counted, or wrong.
  template <class F>
  bool attempt(F f);
  // Gives a block's work to a stream, if that can be given any.
  void work(const TenantRef& tenant, std::size_t slot, bool writes);
  void submit(const TenantRef& tenant, const Slot& slot, bool writes);
  bool takes_work(const Slot& slot) const;
  Graph* graph_of(std::uint64_t id);
  bool is_whole(const Graph& graph) const;
  void finish(const Slot& slot);
  Bytes draw_size();
  TenantRef take_any();
  std::size_t any_slot() { return random_() % slots_.size(); }
  Allocator& allocator(int device) {
    return *episode_.allocators[static_cast<std::size_t>(device)];
  }

  Episode& episode_;
  const Conditions& conditions_;
  unsigned thread_;
  std::mt19937_64 random_;
  std::vector<Slot> slots_;
  std::vector<TenantRef> live_;
  Bytes live_bytes_ = 0;
  std::deque<Graph> graphs_;
  std::uint64_t next_graph_;
  // The device on which the thread's tag sleeps; -1 for none.
  int asleep_ = -1;
  bool keeps_ = false;
  // A receive whose send is to come, and how many operations until then.
  strict::U64 gate_ = 0;
  std::size_t gate_slot_ = 0;
  std::uint64_t gate_left_ = 0;
  Happened happened_;
};

template <class F>
bool Program::attempt(F f) {
  try {
    f();
    return true;
  } catch (const OutOfMemory&) {
    ++happened_.out_of_memory;
  } catch (const DriverError& error) {
    ++happened_.refused;
    if (!conditions_.refuses()) {
      episode_.findings.complain(std::string("an error nobody caused: ") +
                                 error.what());
    }
  } catch (const MisuseError& error) {
    episode_.findings.complain(std::string("called misuse: ") + error.what());
  }
  return false;
}

}  // namespace drivetrain
