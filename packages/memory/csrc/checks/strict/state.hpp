// What the strict double of the CUDA driver knows: devices, memory, streams, events.
//
// Everything here is guarded by the one mutex of the state. The driver's functions take
// it with `call`, tests with `locked`.

#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#define STRICT extern "C" __attribute__((visibility("default")))

namespace strict {

using U64 = unsigned long long;
using Result = int;

constexpr Result kSuccess = 0;
constexpr Result kInvalidValue = 1;
constexpr Result kOutOfMemory = 2;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kInvalidHandle = 400;
constexpr Result kNotReady = 600;
constexpr Result kNotSupported = 801;
constexpr Result kCaptureUnsupported = 900;
constexpr Result kCaptureInvalidated = 901;
constexpr Result kCaptureIsolation = 905;
constexpr Result kCaptureImplicit = 906;
constexpr Result kCapturedEvent = 907;

constexpr U64 kChunk = U64{2} << 20;
// One page table serves so many addresses, and takes so much of the device.
constexpr U64 kTableReach = U64{128} << 20;
constexpr U64 kTableBytes = U64{64} << 10;

constexpr int kMostDevices = 15;
// Memory that lies on the host.
constexpr int kHost = kMostDevices;

// A stream, also where its handle names another one by now. 0 for none.
using StreamId = U64;

// A piece of work of a stream. It can run when what it waits for has come.
struct Work {
  std::function<void()> run;
  StreamId on = 0;
  U64 until = 0;
  U64 gate = 0;
};

struct Stream {
  StreamId id = 0;
  U64 handle = 0;
  int device = 0;
  bool blocking = false;
  bool dead = false;
  // The capture that it is part of; 0 for none.
  U64 capture = 0;
  // How many pieces of work it was given, and how many of them are done.
  U64 given = 0;
  U64 done = 0;
  std::deque<Work> queue;
  // Somebody waits for it; to find waits that go round.
  bool awaited = false;
};

struct Capture {
  StreamId origin = 0;
  int mode = 0;
  std::uint64_t thread = 0;
  bool spoilt = false;
};

struct Event {
  int device = 0;
  StreamId stream = 0;
  U64 at = 0;
  U64 capture = 0;
};

// A point that work waits for until other work, or the test, opens it.
struct Gate {
  bool open = false;
  // The work that opens it; no stream as long as there is none.
  StreamId stream = 0;
  U64 at = 0;
};

struct Memory {
  int device = 0;
  U64 bytes = 0;
  int file = -1;
  U64 offset = 0;
  // A file of its own, that others can be given.
  bool shareable = false;
  // From another process, which counts it.
  bool imported = false;
  // Those who hold a handle, and how often it is mapped.
  int references = 1;
  int mappings = 0;
};

struct Mapping {
  U64 bytes = 0;
  U64 memory = 0;
  bool accessible = false;
};

struct Device {
  int file = -1;
  U64 used = 0;
  U64 tables = 0;
  U64 next_offset = 0;
  // Offsets that are free again, by size.
  std::map<U64, std::vector<U64>> holes;
  // How many mappings each page table serves.
  std::unordered_map<U64, int> table_users;
  StreamId legacy = 0;
};

struct Wait {
  StreamId stream;
  StreamId on;
  U64 at;
};

// One function of the driver: how often it was called, and which calls are refused.
struct Function {
  U64 calls = 0;
  // The call after so many others, and as many behind it as are to fail.
  U64 after = 0;
  U64 times = 0;
  // So many of a million, at random.
  U64 share = 0;
  Result result = kSuccess;

  bool refuses() const { return times > 0 || share > 0; }
};

// How often a handle was used that had been destroyed, by kind; and what else no
// program may do.
struct Offences {
  U64 dead_streams = 0;
  U64 dead_events = 0;
  U64 dead_memory = 0;
  // Captures that a call made useless.
  U64 spoilt = 0;
  // Waits that could never end.
  U64 hangs = 0;
  // Copies that touched memory which is not accessible.
  U64 faults = 0;
  std::string first_hang;
};

struct State {
  std::mutex mutex;
  int num_devices = 1;
  U64 total = U64{256} << 20;
  U64 address_limit = U64{128} << 40;
  U64 reserved_bytes = 0;
  // Whether mappings are real; without, only the books are kept.
  bool has_bytes = true;
  std::array<Device, kMostDevices + 1> devices;
  // In order, so that a seed means one thing.
  std::map<StreamId, Stream> streams;
  // Living streams by handle, and the handles of destroyed ones.
  std::unordered_map<U64, StreamId> handles;
  std::set<U64> dead_handles;
  std::unordered_map<U64, Event> events;
  std::unordered_map<U64, Memory> memory;
  std::map<U64, U64> reserved;
  std::map<U64, Mapping> mapped;
  std::map<U64, Capture> captures;
  std::unordered_map<U64, Gate> gates;
  std::map<U64, U64> host_memory;
  // Waits that were asked for, if a test wants to see them.
  bool keeps_waits = false;
  std::vector<Wait> waits;
  std::map<std::string, Function> functions;
  std::mt19937_64 random{1};
  U64 refused = 0;
  U64 next = 0x1000;
  StreamId next_stream = 1;
  Offences offences;
};

State& state();

// The functions of the driver with this name; made when it is first asked for.
Function& function(const char* name);
// Whether this call is refused, and with what. Uses up the refusal.
Result refusal(State& now, Function& called);

// The number of the device whose context is current in this thread; -1 for none.
int current_device();
void* context_of_device(int device);
// How the calling thread takes captures: 0 global, 1 of its own, 2 relaxed.
int& thread_capture_mode();
std::uint64_t this_thread();

template <class F>
auto locked(F f) {
  State& now = state();
  const std::lock_guard<std::mutex> lock(now.mutex);
  return f(now);
}

template <class F>
Result call(Function& called, F f) {
  State& now = state();
  const std::lock_guard<std::mutex> lock(now.mutex);
  ++called.calls;
  if (called.refuses()) {
    if (const Result result = refusal(now, called)) {
      return result;
    }
  }
  return f(now);
}

// The body of a function of the driver, which counts its calls and may be refused.
// What a device has left.
inline U64 free_bytes(const State& now, int device) {
  const Device& on = now.devices[static_cast<std::size_t>(device)];
  const U64 used = on.used + on.tables;
  return used > now.total ? 0 : now.total - used;
}

// The mapping around an address; null when there is none.
const Mapping* mapping_at(const State& now, U64 at, U64* begin = nullptr);
// Whether all of a range is mapped and its access set.
bool usable(const State& now, U64 at, U64 bytes);

}  // namespace strict
