#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "table.hpp"

namespace drivetrain::nccl {

namespace {

struct Descriptor {
  explicit Descriptor(int number) : fd(number) {}
  ~Descriptor() { close(fd); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int fd;
};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw TableError(path + ": " + why);
}

[[noreturn]] void refuse_error(const std::string& path, int error) {
  refuse(path, "it cannot be read: " + std::generic_category().message(error));
}

std::string read_file(const std::string& path) {
  // Without O_NONBLOCK a pipe would stop the job here.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) refuse_error(path, errno);
  const Descriptor file(fd);
  struct stat status;
  if (fstat(fd, &status) != 0) refuse_error(path, errno);
  if (!S_ISREG(status.st_mode)) refuse(path, "it must be a regular file");
  std::string text;
  char piece[1 << 16];
  while (text.size() <= most_table_bytes) {
    const ssize_t num_read = read(fd, piece, sizeof piece);
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read < 0) refuse_error(path, errno);
    if (num_read == 0) return text;
    text.append(piece, static_cast<std::size_t>(num_read));
  }
  refuse(path, "it must be at most " + std::to_string(most_table_bytes) + " bytes");
}

}  // namespace

Table load_table(const std::string& path) { return parse_table(read_file(path), path); }

}  // namespace drivetrain::nccl
