// Short programs on the strict double of the CUDA driver, one for each thing that
// random programs found: what they show must hold.
//
// Usage: check_cases [NAME...]
//
// Without a name all of them run. Prints what is wrong, and fails if anything is.

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "../allocator.hpp"
#include "../driver/cuda_driver.hpp"
#include "../driver/host_driver.hpp"
#include "../driver/shared_memory.hpp"
#include "../error.hpp"
#include "strict/control.hpp"

using namespace drivetrain;

namespace {

constexpr Bytes kChunk = strict::kChunk;
constexpr Bytes kSlack = kChunk - (Bytes{64} << 10);
constexpr Stream kOne = 0x101;
constexpr Stream kTwo = 0x102;
constexpr Stream kOther = 0x103;
constexpr PoolKey kGraph{7, 0};

int num_wrong = 0;
const char* running = "";

void expect(bool holds, const char* what) {
  if (!holds) {
    std::printf("WRONG %s: %s\n", running, what);
    ++num_wrong;
  }
}

// An allocator on the first of two devices with room for so many chunks.
struct Machine {
  explicit Machine(std::uint64_t chunks, Options options = everything()) {
    strict::configure(2, chunks * kChunk + kSlack, true);
    driver = std::make_unique<CudaDriver>(0, false, "");
    allocator = std::make_unique<Allocator>(*driver, options, process);
    make_stream(kOne, 0);
    make_stream(kTwo, 0);
  }
  ~Machine() {
    strict::finish_all();
    allocator.reset();
    strict::locked([](strict::State& now) {
      now.streams.clear();
      now.handles.clear();
      now.dead_handles.clear();
      now.captures.clear();
      now.offences = {};
      for (strict::Device& device : now.devices) {
        // What a case has lost is not the next one's.
        device.used = 0;
        device.legacy = 0;
      }
    });
  }

  // Takes all that there is, or no more than is live at a time.
  static Options everything() { return with_headroom(-1.0); }
  static Options least() { return with_headroom(0.0); }
  static Options with_headroom(double headroom) {
    Options options;
    options.headroom = headroom;
    return options;
  }

  strict::StreamId make_stream(Stream handle, int device) {
    return strict::locked([&](strict::State& now) {
      return strict::make_stream(now, handle, device, false).id;
    });
  }
  void destroy_stream(Stream handle) {
    strict::locked([&](strict::State& now) {
      strict::destroy_stream(now, *strict::find_stream(now, handle, 0));
    });
  }
  strict::U64 capture(Stream handle) {
    return strict::locked([&](strict::State& now) {
      return strict::begin_capture(now, *strict::find_stream(now, handle, 0), 0);
    });
  }

  // Whether a stream's next work would run now, while another stream has work left.
  bool overtakes(Stream handle, strict::StreamId other) {
    bool ran = false;
    strict::submit(handle, 0, [&] { ran = true; });
    return strict::locked([&](strict::State& now) {
      strict::advance(now, *strict::find_stream(now, handle, 0), ~strict::U64{0});
      const auto left = now.streams.find(other);
      const bool unfinished = left != now.streams.end() && !left->second.queue.empty();
      strict::Stream& own = *strict::find_stream(now, handle, 0);
      strict::finish(now, own.id, own.given);
      return ran && unfinished;
    });
  }

  std::shared_ptr<ProcessState> process = std::make_shared<ProcessState>();
  std::unique_ptr<CudaDriver> driver;
  std::unique_ptr<Allocator> allocator;
};

// Cases ------------------------------------------------------------------------------

// A stream was done when it was last asked. Then it uses a block, and is destroyed.
void destroyed_user_has_work_left() {
  Machine machine(4);
  Allocator& memory = *machine.allocator;
  const strict::StreamId other = machine.make_stream(kOther, 0);
  const Address first = memory.allocate(4 * kChunk, kOne);
  memory.record_stream(first, kOther);
  memory.free(first);
  memory.trim();
  const Address second = memory.allocate(4 * kChunk, kOne);
  memory.record_stream(second, kOther);
  strict::submit(kOther, 0, [] {});
  machine.destroy_stream(kOther);
  memory.free(second);
  memory.allocate(4 * kChunk, kOne);
  expect(!machine.overtakes(kOne, other), "memory is given on while it is used");
}

// A stream of another device uses a block, and is destroyed.
void destroyed_user_of_another_device() {
  Machine machine(4);
  Allocator& memory = *machine.allocator;
  const strict::StreamId other = machine.make_stream(kOther, 1);
  const Address block = memory.allocate(4 * kChunk, kOne);
  memory.record_stream(block, kOther);
  strict::submit(kOther, 1, [] {});
  machine.destroy_stream(kOther);
  memory.free(block);
  try {
    memory.allocate(4 * kChunk, kOne);
    expect(!machine.overtakes(kOne, other), "memory is given on while it is used");
  } catch (const OutOfMemory&) {
    // Safe, if nothing better.
  }
}

// A stream of another device uses memory that goes to sleep.
void sleep_waits_for_other_devices() {
  Machine machine(4);
  Allocator& memory = *machine.allocator;
  const strict::StreamId other = machine.make_stream(kOther, 1);
  const Address block = memory.allocate(2 * kChunk, kOne, {0, 1});
  memory.record_stream(block, kOther);
  strict::submit(kOther, 1, [] {});
  memory.free(block);
  memory.sleep(1, false);
  strict::locked([&](strict::State& now) {
    const auto left = now.streams.find(other);
    expect(left->second.queue.empty(), "memory sleeps while it is used");
  });
}

// A block's own stream is destroyed and done, while another still uses the block.
void destroyed_owner_waits_for_nothing() {
  Machine machine(4);
  Allocator& memory = *machine.allocator;
  machine.make_stream(kOther, 0);
  const Address block = memory.allocate(4 * kChunk, kOther);
  memory.trim();
  memory.record_stream(block, kOne);
  strict::submit(kOne, 0, [] {});
  machine.destroy_stream(kOther);
  memory.free(block);
  try {
    for (int i = 0; i < 2; ++i) {
      memory.free(memory.allocate(4 * kChunk, kTwo));
    }
  } catch (const OutOfMemory&) {
    expect(false, "memory of a destroyed stream is lost");
  } catch (const DriverError&) {
    expect(false, "a destroyed stream is to wait");
  }
}

// All that is freed goes back at once, also what a destroyed stream had.
void trim_gives_back_all() {
  Machine machine(8);
  Allocator& memory = *machine.allocator;
  machine.make_stream(kOther, 0);
  const Address block = memory.allocate(4 * kChunk, kOther);
  memory.record_stream(block, kOne);
  strict::submit(kOne, 0, [] {});
  machine.destroy_stream(kOther);
  memory.free(block);
  strict::finish_all();
  memory.trim();
  expect(memory.counters().reserved_bytes == 0, "a trim leaves what nobody uses");
}

// A stream is captured that the allocator does not know; as PyTorch does, it is told
// that there are captures.
void unknown_capture_stays_whole() {
  Machine machine(8);
  Allocator& memory = *machine.allocator;
  machine.make_stream(kOther, 0);
  memory.free(memory.allocate(4 * kChunk, kOther));
  strict::submit(kOther, 0, [] {});
  machine.destroy_stream(kOther);
  machine.process->expect_captures(true);
  machine.capture(kTwo);
  try {
    memory.trim();
    memory.allocate(8 * kChunk, kOne);
  } catch (const OutOfMemory&) {
  }
  try {
    memory.sleep(0, true);
    expect(false, "memory sleeps while a graph is captured");
  } catch (const MisuseError&) {
  }
  const auto spoilt =
      strict::locked([](strict::State& now) { return now.offences.spoilt; });
  machine.process->expect_captures(false);
  expect(spoilt == 0, "a capture is spoilt");
}

std::uint64_t memory_at(Address at) {
  return strict::locked(
      [&](strict::State& now) { return strict::place_of(now, at).memory; });
}

// A request that does not fit, in a capture, leaves the graph its memory.
void graph_keeps_memory_after_refusal() {
  Machine machine(3, Machine::least());
  Allocator& memory = *machine.allocator;
  const strict::U64 capture = machine.capture(kOne);
  const Address block = memory.allocate(kChunk, kOne, kGraph);
  const std::uint64_t mine = memory_at(block);
  memory.allocate(kChunk, kOne, kGraph);
  memory.free(block);
  memory.free(memory.allocate(kChunk, kTwo));
  try {
    memory.allocate(2 * kChunk, kOne, kGraph);
    expect(false, "a capture takes what it would have to wait for");
  } catch (const OutOfMemory&) {
  }
  strict::locked([&](strict::State& now) { strict::end_capture(now, capture); });
  try {
    const Address other = memory.allocate(2 * kChunk, kTwo);
    for (Address page = other; page < other + 2 * kChunk; page += kChunk) {
      expect(memory_at(page) != mine, "memory that a graph uses is given to others");
    }
  } catch (const OutOfMemory&) {
  }
}

// Where few pages may be mapped, those that a graph uses stay.
void graph_keeps_mappings() {
  Options options = Machine::least();
  options.mapped_bytes = 4 * kChunk;
  Machine machine(4, options);
  Allocator& memory = *machine.allocator;
  const strict::U64 capture = machine.capture(kOne);
  const Address block = memory.allocate(kChunk, kOne, kGraph);
  memory.allocate(kChunk, kOne, kGraph);
  memory.free(block);
  // The work of the first block, when the graph is launched, writes to this one's
  // memory.
  memory.allocate(2 * kChunk, kOne, kGraph);
  strict::locked([&](strict::State& now) { strict::end_capture(now, capture); });
  strict::finish_all();
  const bool before = memory_at(block) != 0;
  memory.allocate(kChunk, kTwo);
  expect(!before || memory_at(block) != 0, "a page that a graph uses is unmapped");
}

// While memory is left, no stream waits for what another was given after its free.
void stream_waits_for_no_later_work() {
  Machine machine(64, Machine::least());
  Allocator& memory = *machine.allocator;
  memory.free(memory.allocate(kChunk, kOne));
  strict::finish_all();
  const Address small = memory.allocate(kChunk / 4, kTwo);
  strict::submit(kTwo, 0, [] {});
  memory.free(small);
  const strict::U64 receive = strict::submit_gate(kTwo, 0);
  memory.allocate(kChunk, kOne);
  strict::submit_opening(kOne, 0, receive);
  expect(strict::finish_all(), "a receive waits for a send that waits for it");
}

// Nor does the host, for what it has yet to make possible.
void host_waits_for_no_receive() {
  Machine machine(64, Machine::least());
  Allocator& memory = *machine.allocator;
  const Address first = memory.allocate(kChunk, kOne);
  const Address second = memory.allocate(kChunk, kOne);
  const strict::U64 receive = strict::submit_gate(kOne, 0);
  memory.free(first);
  // Has the memory of the first, behind the second.
  const Address third = memory.allocate(2 * kChunk, kOne);
  memory.free(second);
  memory.free(third);
  memory.free(memory.allocate(4 * kChunk, kOne));
  const auto hangs =
      strict::locked([](strict::State& now) { return now.offences.hangs; });
  expect(hangs == 0, "the host waits for what it has yet to submit");
  strict::submit_opening(kTwo, 0, receive);
}

// No event is left when a driver is gone.
void driver_destroys_its_events() {
  const std::uint64_t before = strict::count(strict::Kind::kEvents);
  {
    Machine machine(4);
    const Address block = machine.allocator->allocate(kChunk, kOne);
    machine.allocator->record_stream(block, kTwo);
    machine.allocator->free(block);
  }
  expect(strict::count(strict::Kind::kEvents) == before, "events leak");
}

// What a capture was refused stays its graph's, and its tag's there: a replay writes to
// it, which sleep of another tag must not prevent.
void graph_keeps_mappings_of_all_its_tags() {
  Machine machine(4, Machine::least());
  Allocator& memory = *machine.allocator;
  const PoolKey weights{7, 1};
  const PoolKey cache{7, 2};
  const strict::U64 capture = machine.capture(kOne);
  const Address first = memory.allocate(kChunk, kOne, weights);
  memory.allocate(kChunk, kOne, weights);
  memory.free(first);
  memory.free(memory.allocate(kChunk, kTwo));
  try {
    memory.allocate(3 * kChunk, kOne, weights);
    expect(false, "a capture takes what it would have to wait for");
  } catch (const OutOfMemory&) {
  }
  const Address second = memory.allocate(kChunk, kOne, cache);
  strict::locked([&](strict::State& now) { strict::end_capture(now, capture); });
  const std::uint64_t tags[] = {2, 1, 2};
  for (const std::uint64_t tag : tags) {
    memory.sleep(tag, true);
    memory.wake(tag);
    expect(memory_at(first) != 0 && memory_at(second) != 0,
           "a page that a graph uses lacks its memory after sleep");
  }
}

// Refuses all but the first few mappings from now on. There is room behind all ranges.
struct RefusingDriver : HostDriver {
  using HostDriver::HostDriver;

  Address reserve(Bytes bytes) override {
    const Address at = HostDriver::reserve(bytes + kRoom);
    HostDriver::unreserve(at + bytes, kRoom);
    return at;
  }

  void map(Address at, const Handle* chunks, std::size_t count) override {
    if (left == 0) {
      throw DriverError("refused");
    }
    --left;
    HostDriver::map(at, chunks, count);
  }

  static constexpr Bytes kRoom = 64 * kChunk;
  std::uint64_t left = ~std::uint64_t{0};
};

// A request that the driver refuses in the middle leaves a graph its memory too.
void graph_keeps_memory_after_a_refused_mapping() {
  RefusingDriver driver(36 * kChunk, kChunk);
  Allocator memory(driver, Machine::everything());
  const Address first = memory.allocate(4 * kChunk, kOne, kGraph);
  memory.allocate(24 * kChunk, kOne, kGraph);
  memory.free(first);
  try {
    memory.allocate(36 * kChunk, kOne, kGraph);
    expect(false, "more is allocated than there is");
  } catch (const OutOfMemory&) {
  }
  // What is free is mapped first, up to where the addresses were extended.
  driver.left = 1;
  try {
    memory.allocate(12 * kChunk, kOne, kGraph);
    expect(false, "the case is another one");
  } catch (const DriverError&) {
  }
  driver.left = ~std::uint64_t{0};
  auto* const written = reinterpret_cast<unsigned char*>(first);
  std::memset(written, 1, 4 * kChunk);
  try {
    for (;;) {
      std::memset(reinterpret_cast<void*>(memory.allocate(kChunk, kTwo)), 2, kChunk);
    }
  } catch (const OutOfMemory&) {
  }
  for (Bytes i = 0; i < 4 * kChunk; i += kChunk) {
    expect(written[i] == 1, "memory that a graph uses is given to others");
  }
}

// One thread lets a tag sleep and wake, while others allocate, free, share, take what
// is shared, trim and look.
void threads_beside_sleep() {
  Machine machine(48);
  Allocator& memory = *machine.allocator;
  constexpr int kTurns = 60;
  constexpr Bytes kSize = 5 * kChunk + 512;
  std::atomic<bool> ended{false};
  std::atomic<std::uint64_t> wrong{0};
  const auto until_ended = [&](auto act) {
    return std::thread([&ended, &wrong, act] {
      for (std::uint64_t i = 0; !ended; ++i) {
        try {
          act(i);
        } catch (const OutOfMemory&) {
        } catch (const Error&) {
          ++wrong;
        }
      }
    });
  };
  std::vector<std::thread> threads;
  for (const Stream stream : {kOne, kTwo}) {
    threads.push_back(until_ended([&memory, stream](std::uint64_t i) {
      const Bytes size = (i % 7 + 1) * (kChunk / 2);
      const Address at = memory.allocate(size, stream, {0, 2 + i % 2});
      if (i % 3 == 0) {
        memory.record_stream(at + size / 2, stream == kOne ? kTwo : kOne);
      }
      memory.free(at);
    }));
  }
  CudaDriver taker(0, false, "");
  threads.push_back(until_ended([&](std::uint64_t i) {
    const Bytes size = 700 + i % 3 * kChunk;
    const Address at = memory.allocate(size, kOne, {0, 4});
    auto* const written = reinterpret_cast<unsigned char*>(at);
    const auto value = static_cast<unsigned char>(i);
    written[0] = written[size - 1] = value;
    const Shared shared = memory.share(at);
    memory.free(at);
    const SharedMemory taken(taker, getpid(), shared, size);
    const auto* const read = reinterpret_cast<const unsigned char*>(taken.at());
    wrong += read[0] != value || read[size - 1] != value;
  }));
  threads.push_back(until_ended([&](std::uint64_t i) {
    if (i % 16 == 0) {
      memory.trim();
    }
    const Counters found = memory.counters();
    wrong += found.live_bytes > found.active_bytes ||
             found.active_bytes > found.reserved_bytes || found.asleep_bytes > kSize;
    memory.each_block([](const Block&) {});
    memory.history();
  }));
  memory.keep_history(50);
  const Address kept = memory.allocate(kSize, kOne, {0, 1});
  auto* const bytes = reinterpret_cast<unsigned char*>(kept);
  for (int turn = 0; turn < kTurns;) {
    std::memset(bytes, turn, kSize);
    memory.sleep(1, true);
    expect(memory.is_asleep(1), "memory does not sleep");
    while (memory.is_asleep(1)) {
      try {
        memory.wake(1);
      } catch (const OutOfMemory&) {
        // The others have it.
      }
    }
    expect(bytes[0] == turn && bytes[kSize - 1] == turn, "contents are lost in sleep");
    ++turn;
  }
  ended = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  memory.free(kept);
  memory.trim();
  expect(wrong == 0, "a thread finds figures, contents or errors that are wrong");
  expect(memory.counters().reserved_bytes == 0, "memory is lost");
}

struct Case {
  const char* name;
  void (*run)();
};

#define CASE(name) {#name, name}
constexpr Case kCases[] = {
    CASE(destroyed_user_has_work_left),
    CASE(destroyed_user_of_another_device),
    CASE(sleep_waits_for_other_devices),
    CASE(destroyed_owner_waits_for_nothing),
    CASE(trim_gives_back_all),
    CASE(unknown_capture_stays_whole),
    CASE(graph_keeps_memory_after_refusal),
    CASE(graph_keeps_mappings),
    CASE(graph_keeps_mappings_of_all_its_tags),
    CASE(graph_keeps_memory_after_a_refused_mapping),
    CASE(stream_waits_for_no_later_work),
    CASE(host_waits_for_no_receive),
    CASE(driver_destroys_its_events),
    CASE(threads_beside_sleep),
};

bool is_asked_for(const char* name, int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(name, argv[i]) == 0) {
      return true;
    }
  }
  return argc == 1;
}

}  // namespace

int main(int argc, char** argv) {
  int num_run = 0;
  for (const Case& one : kCases) {
    if (!is_asked_for(one.name, argc, argv)) {
      continue;
    }
    running = one.name;
    try {
      one.run();
    } catch (const Error& error) {
      expect(false, error.what());
    }
    ++num_run;
  }
  std::printf("{\"run\": %d, \"wrong\": %d}\n", num_run, num_wrong);
  return num_wrong == 0 && num_run > 0 ? 0 : 1;
}
