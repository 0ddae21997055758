#include "graph.hpp"

#include <c10/util/Exception.h>
#include <torch/version.h>

#include <atomic>
#include <map>
#include <mutex>

#include "allocator.hpp"
#include "health.hpp"
#include "settings.hpp"
#include "streams.hpp"

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
#include <ATen/core/GraphImplInterface.h>
#define SIM_HAS_GRAPH_INTERFACE
#endif

namespace sim {
namespace {

std::atomic<std::int64_t> num_pools{0};

// How many graphs use a pool: graphs may share one.
struct PoolUsers {
  std::mutex mutex;
  std::map<std::int64_t, int> counts;
};

PoolUsers& users() {
  static PoolUsers& instance = *new PoolUsers;
  return instance;
}

void add_user(std::int64_t pool) {
  std::lock_guard lock(users().mutex);
  ++users().counts[pool];
}

bool remove_last_user(std::int64_t pool) {
  std::lock_guard lock(users().mutex);
  if (--users().counts[pool] > 0) return false;
  users().counts.erase(pool);
  return true;
}

}  // namespace

CapturedGraph::CapturedGraph() {
  TORCH_CHECK(settings().graphs,
              "this simulated device has no graphs: its setting graphs is off");
}

CapturedGraph::~CapturedGraph() {
  try {
    reset();
  } catch (const c10::Error&) {
    // The device is broken: its memory is of no use to anybody.
  }
}

void CapturedGraph::capture_begin(std::int64_t pool) {
  TORCH_CHECK(state_ == kEmpty,
              "this graph holds a capture already: reset it before another one");
  device_ = current_device();
  stream_ = current_stream(device_);
  check_launch(device_);
  TORCH_CHECK(stream_ != kDefaultStream,
              "a graph cannot be captured on the default stream: make another one the "
              "current stream");
  pool_ = pool > 0 ? pool : ++num_pools;
  stream_queue(device_, stream_).begin_capture();
  begin_capture_pool(device_, stream_, pool_);
  add_user(pool_);
  state_ = kCapturing;
}

void CapturedGraph::capture_end() {
  TORCH_CHECK(state_ == kCapturing, "this graph is not being captured");
  end_capture(device_, stream_);
  work_ = stream_queue(device_, stream_).end_capture();
  state_ = kCaptured;
}

void CapturedGraph::replay() {
  TORCH_CHECK(state_ == kCaptured, "this graph has not been captured");
  check_launch(device_);
  StreamQueue& queue = current_queue(device_);
  for (const MakeWork& make : work_) queue.push_made(make);
}

void CapturedGraph::reset() {
  if (state_ == kCapturing) capture_end();
  if (state_ == kEmpty) return;
  state_ = kEmpty;
  work_.clear();
  if (is_in_bad_fork() || !remove_last_user(pool_)) return;
  // A replay may still run.
  synchronize_device(device_);
  end_pool(device_, pool_);
}

bool is_capturing(int device, std::int64_t stream) {
  return is_initialized(device) && stream_queue(device, stream).is_capturing();
}

#ifdef SIM_HAS_GRAPH_INTERFACE

namespace {

// The graph as torch.accelerator.Graph knows it.
class GraphImpl final : public at::GraphImplInterface {
 public:
  explicit GraphImpl(const at::GraphImplArgs&) {}

  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode) override {
    graph_.capture_begin(static_cast<std::int64_t>(pool.first));
  }
  void capture_end() override { graph_.capture_end(); }
  void instantiate() override {}
  void replay() override { graph_.replay(); }
  void reset() override { graph_.reset(); }
  c10::MempoolId_t pool() const override {
    return {static_cast<c10::CaptureId_t>(graph_.pool()), 0};
  }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "a graph of a simulated device has no dump");
  }

 private:
  CapturedGraph graph_;
};

}  // namespace

}  // namespace sim

namespace at {
// The key is the device's name in capitals.
REGISTER_GRAPH_IMPL(SIM, sim::GraphImpl)
}  // namespace at

namespace sim {

#endif

}  // namespace sim
