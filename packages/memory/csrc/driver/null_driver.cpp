#include "null_driver.hpp"

#include <algorithm>
#include <string>

#include "../error.hpp"

namespace drivetrain {

namespace {

// Far from what a process maps, so that a mistaken use faults.
constexpr Address kFirst = Address{1} << 46;
// How far apart ranges begin, beside what the device has, so that they can be extended.
constexpr Bytes kApartOfDevice = 2;

}  // namespace

NullDriver::NullDriver(Bytes total, Bytes chunk)
    : total_(total), chunk_(chunk), next_address_(kFirst) {
  if (chunk < kUnit || (chunk & (chunk - 1)) != 0) {
    throw MisuseError("a chunk is a power of two of at least 512 bytes, not " +
                      std::to_string(chunk));
  }
}

Address NullDriver::reserve(Bytes bytes) {
  const Address at = next_address_;
  ranges_.insert(at);
  next_address_ += round_up(std::max(bytes, kApartOfDevice * total_), chunk_);
  return at;
}

bool NullDriver::extend(Address end, Bytes bytes) {
  const auto next = ranges_.lower_bound(end);
  if (next != ranges_.end() && *next < end + bytes) {
    return false;
  }
  next_address_ = std::max(next_address_, end + bytes);
  return true;
}

bool NullDriver::create(Handle* chunk) {
  if (used_ + chunk_ > total_) {
    return false;
  }
  used_ += chunk_;
  *chunk = next_++;
  return true;
}

void NullDriver::destroy(Handle) { used_ -= chunk_; }

}  // namespace drivetrain
