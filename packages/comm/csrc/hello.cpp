#include "hello.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <system_error>

namespace drivetrain {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Numeric addresses only: no name service is asked.
Addresses resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  if (getaddrinfo(host.c_str(), service.c_str(), &hints, &found) != 0) return nullptr;
  return Addresses(found);
}

// A name that is no file, seen by this network namespace alone.
socklen_t local_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const std::size_t size = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), size);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

std::string check(const Hello& hello) {
  if (hello.magic != hello_magic) return "it is no rank of a group";
  if (hello.version != protocol_version)
    return "rank " + std::to_string(hello.rank) + " speaks version " +
           std::to_string(hello.version) + " of the protocol, its peer version " +
           std::to_string(protocol_version) +
           ": install the same drivetrain-comm on all ranks";
  return "";
}

int listen_tcp(const std::string& host, std::uint16_t& port) {
  const Addresses addresses = resolve(host, port);
  if (!addresses) fail(EADDRNOTAVAIL, "no address: " + host);
  const int family = addresses->ai_family;
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) fail(errno, "socket");
  if (bind(fd, addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(fd, SOMAXCONN) != 0) {
    const int error = errno;
    close(fd);
    fail(error, "cannot listen at " + host);
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  port = ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                  : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return fd;
}

int listen_local(const std::string& name) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) fail(errno, "socket");
  sockaddr_un address;
  const socklen_t size = local_address(name, address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(fd, SOMAXCONN) != 0) {
    const int error = errno;
    close(fd);
    fail(error, "cannot listen at the local name " + name);
  }
  return fd;
}

int connect_tcp(const std::string& host, std::uint16_t port, int buffer_bytes,
                std::string& error) {
  const Addresses addresses = resolve(host, port);
  if (!addresses) {
    error = "no address: " + host;
    return -1;
  }
  const int kind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  const int fd = socket(addresses->ai_family, kind, 0);
  if (fd >= 0) set_buffers(fd, buffer_bytes);
  if (fd >= 0) set_no_delay(fd);
  if (fd < 0 || (connect(fd, addresses->ai_addr, addresses->ai_addrlen) != 0 &&
                 errno != EINPROGRESS)) {
    error = "cannot connect to " + host + ": " + std::strerror(errno);
    if (fd >= 0) close(fd);
    return -1;
  }
  return fd;
}

void set_buffers(int fd, int buffer_bytes) {
  if (buffer_bytes <= 0) return;
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
}

void set_no_delay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int connect_local(const std::string& name, std::string& error) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t size = local_address(name, address);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) {
    error = "cannot connect within the host: " + std::string(std::strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
  }
  return fd;
}

bool send_with(int socket, const void* data, std::size_t size,
               const std::vector<int>& descriptors) {
  iovec part{const_cast<void*>(data), size};
  std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

bool receive_with(int socket, void* data, std::size_t size, std::size_t num_descriptors,
                  std::vector<int>& descriptors) {
  iovec part{data, size};
  std::vector<char> control(CMSG_SPACE(num_descriptors * sizeof(int)));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  errno = 0;
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); got > 0 && header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    descriptors.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(descriptors.data(), CMSG_DATA(header),
                descriptors.size() * sizeof(int));
  }
  // The kernel says no more than that some are missing.
  if ((message.msg_flags & MSG_CTRUNC) != 0 && descriptors.size() < num_descriptors)
    errno = EMFILE;
  return got == static_cast<ssize_t>(size) && descriptors.size() == num_descriptors;
}

}  // namespace drivetrain
