#include "direct_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "crc32c.hpp"
#include "parallel.hpp"

namespace drivetrain {
namespace {

constexpr std::uint64_t kSector = 4096;

bool is_direct(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & O_DIRECT) != 0;
}

bool clear_direct(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

// Writes a whole block; returns 0 or errno. EINVAL from O_DIRECT, which may come at any
// write (an unaligned end, a layer that does not support it), turns it off.
int write_block(int fd, const unsigned char* data, std::uint64_t size,
                std::uint64_t at) {
  while (size > 0) {
    const ssize_t done = pwrite(fd, data, size, static_cast<off_t>(at));
    if (done < 0) {
      const int error = errno;
      if (error == EINTR) continue;
      if (error == EINVAL && is_direct(fd) && clear_direct(fd)) continue;
      return error;
    }
    if (done == 0) return EIO;
    data += done;
    at += static_cast<std::uint64_t>(done);
    size -= static_cast<std::uint64_t>(done);
  }
  return 0;
}

}  // namespace

WriteResult write_file(int fd, const void* data, std::uint64_t size,
                       std::uint64_t block, int num_threads, std::uint32_t* checksums,
                       Progress* progress) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  const std::uint64_t num_writes = (size + kWriteBytes - 1) / kWriteBytes;
  const bool pads = is_direct(fd);
  std::atomic<std::uint64_t> next{0};
  std::mutex mutex;
  WriteResult result{0, 0, 0};
  std::atomic<bool> has_failed{false};
  const auto fail = [&](int error, std::uint64_t at) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!has_failed.exchange(true)) result = {error, at, 0};
  };
  run_on_threads(num_threads, num_writes, [&] {
    for (std::uint64_t i; !has_failed && (i = next.fetch_add(1)) < num_writes;) {
      const std::uint64_t at = i * kWriteBytes;
      const std::uint64_t length = std::min(kWriteBytes, size - at);
      if (__atomic_load_n(&progress->stop, __ATOMIC_RELAXED) != 0) {
        fail(ECANCELED, at);
        return;
      }
      checksum_blocks(bytes + at, length, block, 1, checksums + at / block);
      const std::uint64_t padded =
          pads ? (length + kSector - 1) / kSector * kSector : length;
      if (const int error = write_block(fd, bytes + at, padded, at); error != 0)
        fail(error, at);
      else
        __atomic_fetch_add(&progress->done, length, __ATOMIC_RELAXED);
    }
  });
  if (result.error != 0) return result;
  if (pads && size % kSector != 0 && ftruncate(fd, static_cast<off_t>(size)) != 0)
    return {errno, size, 0};
  result.was_direct = is_direct(fd) ? 1 : 0;
  return result;
}

int read_file(int fd, void* data, std::uint64_t size, std::uint64_t at,
              int num_threads) {
  auto* bytes = static_cast<unsigned char*>(data);
  constexpr std::uint64_t kReadBytes = std::uint64_t{4} << 20;
  const std::uint64_t num_reads = (size + kReadBytes - 1) / kReadBytes;
  std::atomic<std::uint64_t> next{0};
  std::atomic<int> error{0};
  run_on_threads(num_threads, num_reads, [&] {
    for (std::uint64_t i; error == 0 && (i = next.fetch_add(1)) < num_reads;) {
      std::uint64_t from = i * kReadBytes;
      const std::uint64_t end = std::min(from + kReadBytes, size);
      while (from < end && error == 0) {
        const ssize_t done =
            pread(fd, bytes + from, end - from, static_cast<off_t>(at + from));
        if (done > 0)
          from += static_cast<std::uint64_t>(done);
        else if (done == 0)
          error = EIO;
        else if (errno != EINTR)
          error = errno;
      }
    }
  });
  return error;
}

void checksum_blocks(const void* data, std::uint64_t size, std::uint64_t block,
                     int num_threads, std::uint32_t* checksums) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  const std::uint64_t num_blocks = (size + block - 1) / block;
  std::atomic<std::uint64_t> next{0};
  run_on_threads(num_threads, num_blocks, [&] {
    for (std::uint64_t i; (i = next.fetch_add(1)) < num_blocks;)
      checksums[i] = crc32c(0, bytes + i * block, std::min(block, size - i * block));
  });
}

}  // namespace drivetrain
