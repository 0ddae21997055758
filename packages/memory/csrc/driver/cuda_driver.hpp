// A CUDA device, through the driver's virtual memory management.

#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "cuda_api.hpp"
#include "driver.hpp"

namespace drivetrain {

class CudaDriver : public Driver {
 public:
  // Args:
  //   device: Its number, as CUDA counts them in this process.
  //   peers: Whether other devices that can reach this one may use its memory.
  //   library: The driver's library.
  //
  // Throws DriverError when there is no such device, or it cannot map memory.
  CudaDriver(int device, bool peers, const std::string& library);
  ~CudaDriver() override;

  // How many devices there are. Makes no context on any.
  //
  // Throws DriverError when one of them cannot map memory.
  static int count(const std::string& library);

  Bytes chunk_bytes() const override { return chunk_; }
  Bytes total_bytes() override;
  Bytes free_bytes() override;
  Address reserve(Bytes bytes) override;
  bool extend(Address end, Bytes bytes) override;
  void unreserve(Address at, Bytes bytes) override;
  bool create(Handle* chunk) override;
  void destroy(Handle chunk) override;
  void map(Address at, const Handle* chunks, std::size_t count) override;
  void unmap(Address at, std::size_t count) override;
  Event record(Stream stream) override;
  bool done(Event event) override;
  void wait(Stream stream, Event event) override;
  void synchronize(Event event) override;
  void forget(Event event) override;
  bool capturing(Stream stream) override;
  int share(Handle chunk) override;
  bool synchronize_all() override;
  void meet(Stream stream) override;

  // Maps chunks that another process shares, one behind the other.
  //
  // Args:
  //   fetch: Returns the descriptor of a chunk; it is closed here. What it throws is
  //     passed on.
  //
  // Throws DriverError when the device refuses; all is as before then.
  Address open(std::size_t count, const std::function<int(std::size_t)>& fetch);
  // The host waits until nothing is under way there; where the device does not let it,
  // as in a capture, it stays mapped until the next call of these two.
  //
  // Args:
  //   hold: What lives as long as it is mapped.
  void close(Address at, std::size_t count, std::shared_ptr<void> hold);
  char* take_host(Bytes bytes) override;
  void give_host(char* memory) override;
  void read(char* to, Address from, Bytes bytes) override;
  void write(Address to, const char* from, Bytes bytes) override;

 private:
  class Scope;

  // Mapped memory of another process that nobody needs here.
  struct Closing {
    Address at;
    std::size_t count;
    std::shared_ptr<void> hold;
  };

  void close_all();
  // The context that a stream is of; null for one that was destroyed.
  cuda::Context context_of(Stream stream);

  const cuda::Api& api_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  // That, and those of streams of other devices that use this one's memory.
  std::set<cuda::Context> contexts_;
  Bytes chunk_ = 0;
  // Where the next range is asked for, so that the one before it can be extended.
  Address next_range_ = 0;
  cuda::AllocationProperties properties_{};
  std::vector<cuda::AccessDescription> access_;
  // Events that nobody needs any more, to be recorded again.
  std::vector<cuda::EventHandle> events_;
  // Those of streams of other devices.
  std::unordered_set<Event> foreign_;
  std::mutex closing_mutex_;
  std::vector<Closing> closing_;
};

}  // namespace drivetrain
