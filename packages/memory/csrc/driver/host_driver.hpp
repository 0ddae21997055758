// A device made of the machine's own memory: one anonymous file, mapped where it is
// wanted. Chunks really alias, and streams are threads.

#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../error.hpp"
#include "driver.hpp"
#include "host_stream.hpp"

namespace drivetrain {

class HostDriver : public Driver {
 public:
  // Args:
  //   total: What the device has, in bytes; memory that is never written costs nothing.
  //   chunk: The size of a chunk, a power of two of whole pages.
  //   delay_us: How long streams sleep at most before each piece of work.
  //   seed: Of these delays.
  //
  // Throws DriverError when the machine has no such memory, MisuseError for a chunk
  // that is not whole pages.
  HostDriver(Bytes total, Bytes chunk, unsigned delay_us = 0, std::uint64_t seed = 0);
  ~HostDriver() override;

  Bytes chunk_bytes() const override { return chunk_; }
  Bytes total_bytes() override { return total_; }
  Bytes free_bytes() override { return total_ - used_; }
  Address reserve(Bytes bytes) override;
  bool extend(Address end, Bytes bytes) override;
  void unreserve(Address at, Bytes bytes) override;
  bool create(Handle* chunk) override;
  void destroy(Handle chunk) override;
  void map(Address at, const Handle* chunks, std::size_t count) override;
  void unmap(Address at, std::size_t count) override;
  std::uint64_t max_mapped() override { return max_mapped_; }
  Event record(Stream stream) override;
  bool done(Event event) override;
  void wait(Stream stream, Event event) override;
  void synchronize(Event event) override;
  void forget(Event event) override;
  bool capturing(Stream) override { return false; }
  int share(Handle) override { throw DriverError("this device shares nothing"); }
  bool synchronize_all() override;
  char* take_host(Bytes bytes) override { return new char[bytes]; }
  void give_host(char* memory) override { delete[] memory; }
  void read(char* to, Address from, Bytes bytes) override;
  void write(Address to, const char* from, Bytes bytes) override;

  // Gives work to a stream. Safe to call from any thread.
  void run(Stream stream, std::function<void()> work);
  // Waits until a stream has done what it was given.
  void drain(Stream stream);

 private:
  struct Point {
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false;

    void reach();
    void await();
  };

  HostStream& stream_of(Stream stream);
  std::shared_ptr<Point> point_of(Event event);
  std::shared_ptr<Point> mark(Stream stream);

  Bytes total_;
  Bytes chunk_;
  unsigned delay_us_;
  std::uint64_t seed_;
  int file_ = -1;
  Bytes used_ = 0;
  std::uint64_t max_mapped_ = 0;
  // Where the next range is asked for, so that the one before it can be extended.
  Address next_range_ = 0;
  std::vector<Handle> unused_;
  Handle next_ = 1;
  std::mutex mutex_;
  std::unordered_map<Event, std::shared_ptr<Point>> points_;
  Event next_event_ = 1;
  // Ends first: streams finish their work while the points still exist.
  std::unordered_map<Stream, std::unique_ptr<HostStream>> streams_;
};

}  // namespace drivetrain
