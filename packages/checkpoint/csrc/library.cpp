// The C interface, called through ctypes. No function throws; those that may fail
// return errno, 0 for success.

#include <sys/mman.h>

#include <cerrno>
#include <new>

#include "copy.hpp"
#include "crc32c.hpp"
#include "direct_file.hpp"

#define DRIVETRAIN_EXPORT __attribute__((visibility("default")))

extern "C" {

DRIVETRAIN_EXPORT std::uint32_t drivetrain_checkpoint_v1_crc32c(std::uint32_t crc,
                                                                const void* data,
                                                                std::uint64_t size) {
  return drivetrain::crc32c(crc, data, size);
}

DRIVETRAIN_EXPORT int drivetrain_checkpoint_v1_copy(const drivetrain::Block* blocks,
                                                    std::uint64_t num_blocks,
                                                    int num_threads) {
  try {
    drivetrain::copy_blocks(blocks, num_blocks, num_threads);
    return 0;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

DRIVETRAIN_EXPORT drivetrain::WriteResult drivetrain_checkpoint_v1_write(
    int fd, const void* data, std::uint64_t size, std::uint64_t block, int num_threads,
    std::uint32_t* checksums, drivetrain::Progress* progress) {
  try {
    return drivetrain::write_file(fd, data, size, block, num_threads, checksums,
                                  progress);
  } catch (const std::bad_alloc&) {
    return {ENOMEM, 0, 0};
  }
}

DRIVETRAIN_EXPORT int drivetrain_checkpoint_v1_read(int fd, void* data,
                                                    std::uint64_t size,
                                                    std::uint64_t at, int num_threads) {
  try {
    return drivetrain::read_file(fd, data, size, at, num_threads);
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

DRIVETRAIN_EXPORT int drivetrain_checkpoint_v1_checksums(const void* data,
                                                         std::uint64_t size,
                                                         std::uint64_t block,
                                                         int num_threads,
                                                         std::uint32_t* checksums) {
  try {
    drivetrain::checksum_blocks(data, size, block, num_threads, checksums);
    return 0;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

// Makes the pages of a mapping present, so that the first copy into it meets no fault.
// An old kernel has no MADV_POPULATE_WRITE; then each page is touched.
DRIVETRAIN_EXPORT int drivetrain_checkpoint_v1_populate(void* data,
                                                        std::uint64_t size) {
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
  if (madvise(data, size, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  auto* bytes = static_cast<volatile unsigned char*>(data);
  for (std::uint64_t at = 0; at < size; at += 4096) bytes[at] = bytes[at];
  return 0;
}
}
