// A driver without a device: every call is book-keeping, for very large traces.

#pragma once

#include <cstdint>
#include <set>

#include "../error.hpp"
#include "driver.hpp"

namespace drivetrain {

// Streams execute at once, so that every event is done. Addresses are never
// dereferenced.
class NullDriver : public Driver {
 public:
  // Throws MisuseError unless `chunk` is a power of two that holds a unit.
  NullDriver(Bytes total, Bytes chunk);

  Bytes chunk_bytes() const override { return chunk_; }
  Bytes total_bytes() override { return total_; }
  Bytes free_bytes() override { return total_ - used_; }
  Address reserve(Bytes bytes) override;
  bool extend(Address end, Bytes bytes) override;
  void unreserve(Address, Bytes) override {}
  bool create(Handle* chunk) override;
  void destroy(Handle chunk) override;
  void map(Address, const Handle*, std::size_t) override {}
  void unmap(Address, std::size_t) override {}
  Event record(Stream) override { return 1; }
  bool done(Event) override { return true; }
  void wait(Stream, Event) override {}
  void synchronize(Event) override {}
  void forget(Event) override {}
  bool capturing(Stream) override { return false; }
  int share(Handle) override { throw DriverError("this device shares nothing"); }
  bool synchronize_all() override { return true; }
  char* take_host(Bytes bytes) override { return new char[bytes]; }
  void give_host(char* memory) override { delete[] memory; }
  void read(char*, Address, Bytes) override {}
  void write(Address, const char*, Bytes) override {}

 private:
  Bytes total_;
  Bytes chunk_;
  Bytes used_ = 0;
  Handle next_ = 1;
  // Where ranges begin, and where the next one may.
  std::set<Address> ranges_;
  Address next_address_;
};

}  // namespace drivetrain
