#include "host_driver.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "../error.hpp"

namespace drivetrain {

namespace {

// What a process maps beside the allocator.
constexpr std::uint64_t kOtherMaps = 4096;

// How far apart ranges begin, beside what the device has.
constexpr Bytes kApartOfDevice = 2;

void* pointer(Address at) { return reinterpret_cast<void*>(at); }

void* map_nothing(Address at, Bytes bytes, int flags) {
  return mmap(pointer(at), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

[[noreturn]] void fail(const char* what, Bytes bytes) {
  throw DriverError(std::string("the machine refuses to ") + what + " " +
                    std::to_string(bytes) + " bytes: " + std::strerror(errno));
}

std::uint64_t max_map_count() {
  std::ifstream file("/proc/sys/vm/max_map_count");
  std::uint64_t count = 0;
  return file >> count ? count : 65530;
}

}  // namespace

HostDriver::HostDriver(Bytes total, Bytes chunk, unsigned delay_us, std::uint64_t seed)
    : total_(total), chunk_(chunk), delay_us_(delay_us), seed_(seed) {
  const auto page = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  if (chunk < page || (chunk & (chunk - 1)) != 0) {
    throw MisuseError("a chunk is a power of two of at least " + std::to_string(page) +
                      " bytes, not " + std::to_string(chunk));
  }
  const std::uint64_t maps = max_map_count();
  // Around a mapped page, the rest of the range is a mapping too.
  max_mapped_ = maps > 2 * kOtherMaps ? (maps - kOtherMaps) / 2 : maps / 4;
  file_ = memfd_create("drivetrain_memory", MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(total)) != 0) {
    const int error = errno;
    if (file_ >= 0) {
      close(file_);
    }
    errno = error;
    fail("make a file of", total);
  }
}

HostDriver::~HostDriver() {
  streams_.clear();
  close(file_);
}

Address HostDriver::reserve(Bytes bytes) {
  void* at = map_nothing(next_range_, bytes + chunk_, 0);
  if (at == MAP_FAILED) {
    fail("reserve", bytes);
  }
  // Addresses are multiples of a chunk, as they are on a GPU.
  const auto begin = reinterpret_cast<Address>(at);
  const Address aligned = round_up(begin, chunk_);
  if (aligned > begin) {
    munmap(at, aligned - begin);
  }
  munmap(pointer(aligned + bytes), begin + chunk_ - aligned);
  // Away from where the process maps what has no wish.
  next_range_ = aligned - round_up(kApartOfDevice * total_ + bytes, chunk_);
  return aligned;
}

bool HostDriver::extend(Address end, Bytes bytes) {
  return map_nothing(end, bytes, MAP_FIXED_NOREPLACE) == pointer(end);
}

void HostDriver::unreserve(Address at, Bytes bytes) { munmap(pointer(at), bytes); }

bool HostDriver::create(Handle* chunk) {
  if (used_ + chunk_ > total_) {
    return false;
  }
  used_ += chunk_;
  if (unused_.empty()) {
    *chunk = next_++;
  } else {
    *chunk = unused_.back();
    unused_.pop_back();
  }
  return true;
}

void HostDriver::destroy(Handle chunk) {
  const auto offset = static_cast<off_t>((chunk - 1) * chunk_);
  if (fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
                static_cast<off_t>(chunk_)) != 0) {
    fail("give back", chunk_);
  }
  used_ -= chunk_;
  unused_.push_back(chunk);
}

void HostDriver::map(Address at, const Handle* chunks, std::size_t count) {
  for (std::size_t first = 0; first < count;) {
    std::size_t last = first + 1;
    while (last < count && chunks[last] == chunks[last - 1] + 1) {
      ++last;
    }
    const Bytes bytes = (last - first) * chunk_;
    void* mapped = mmap(pointer(at + first * chunk_), bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED, file_,
                        static_cast<off_t>((chunks[first] - 1) * chunk_));
    if (mapped == MAP_FAILED) {
      const int error = errno;
      if (first > 0) {
        unmap(at, first);
      }
      errno = error;
      fail("map", bytes);
    }
    first = last;
  }
}

void HostDriver::unmap(Address at, std::size_t count) {
  // Replaced, never left open: another mapping of the process could come there.
  const Bytes bytes = count * chunk_;
  if (map_nothing(at, bytes, MAP_FIXED) == MAP_FAILED) {
    fail("unmap", bytes);
  }
}

Event HostDriver::record(Stream stream) {
  std::shared_ptr<Point> point = mark(stream);
  const std::lock_guard<std::mutex> lock(mutex_);
  const Event event = next_event_++;
  points_[event] = std::move(point);
  return event;
}

bool HostDriver::done(Event event) {
  const std::shared_ptr<Point> point = point_of(event);
  const std::lock_guard<std::mutex> lock(point->mutex);
  return point->reached;
}

void HostDriver::wait(Stream stream, Event event) {
  run(stream, [point = point_of(event)] { point->await(); });
}

void HostDriver::synchronize(Event event) { point_of(event)->await(); }

void HostDriver::forget(Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  points_.erase(event);
}

bool HostDriver::synchronize_all() {
  std::vector<Stream> streams;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& stream : streams_) {
      streams.push_back(stream.first);
    }
  }
  for (const Stream stream : streams) {
    drain(stream);
  }
  return true;
}

void HostDriver::read(char* to, Address from, Bytes bytes) {
  std::memcpy(to, pointer(from), bytes);
}

void HostDriver::write(Address to, const char* from, Bytes bytes) {
  std::memcpy(pointer(to), from, bytes);
}

void HostDriver::run(Stream stream, std::function<void()> work) {
  stream_of(stream).push(std::move(work));
}

void HostDriver::drain(Stream stream) { mark(stream)->await(); }

void HostDriver::Point::reach() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    reached = true;
  }
  changed.notify_all();
}

void HostDriver::Point::await() {
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [this] { return reached; });
}

HostStream& HostDriver::stream_of(Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<HostStream>& found = streams_[stream];
  if (found == nullptr) {
    found = std::make_unique<HostStream>(delay_us_, seed_ + stream);
  }
  return *found;
}

std::shared_ptr<HostDriver::Point> HostDriver::point_of(Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return points_.at(event);
}

std::shared_ptr<HostDriver::Point> HostDriver::mark(Stream stream) {
  auto point = std::make_shared<Point>();
  run(stream, [point] { point->reach(); });
  return point;
}

}  // namespace drivetrain
