// What the allocator throws.
//
// Error
// ├── DriverError      the device's driver refused something that should work
// │   ├── DeviceFull   it has no memory left for what it needs itself, as page tables
// │   └── StreamGone   a stream was destroyed
// ├── OutOfMemory      a request does not fit, whatever is joined
// └── MisuseError      a caller freed what it does not own, or gave a bad option

#pragma once

#include <stdexcept>
#include <string>

namespace drivetrain {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class DriverError : public Error {
 public:
  using Error::Error;
};

class DeviceFull : public DriverError {
 public:
  using DriverError::DriverError;
};

class StreamGone : public DriverError {
 public:
  using DriverError::DriverError;
};

class OutOfMemory : public Error {
 public:
  using Error::Error;
};

class MisuseError : public Error {
 public:
  using Error::Error;
};

}  // namespace drivetrain
