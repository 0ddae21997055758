// How ranks find and greet each other, over TCP and within a host.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace drivetrain {

constexpr std::uint32_t hello_magic = 0x48435444;  // "DTCH"
constexpr std::uint32_t protocol_version = 2;

using Token = std::array<std::uint8_t, 16>;

// The first bytes from the rank that connects.
struct Hello {
  std::uint32_t magic;
  std::uint32_t version;
  Token token;  // of the group
  std::int32_t rank;
  std::int32_t channel;
};
static_assert(sizeof(Hello) == 32);

// Says what is wrong with a greeting; empty if nothing is.
std::string check(const Hello& hello);

// Both throw std::system_error.
int listen_tcp(const std::string& host, std::uint16_t& port);
int listen_local(const std::string& name);

// Starts to connect. Returns a descriptor that becomes writable, or -1 and the error.
// Zero leaves the size of the socket's buffers to the kernel.
int connect_tcp(const std::string& host, std::uint16_t port, int buffer_bytes,
                std::string& error);
int connect_local(const std::string& name, std::string& error);

// Zero leaves the size of the socket's buffers to the kernel.
void set_buffers(int fd, int buffer_bytes);

// Lets small frames leave at once.
void set_no_delay(int fd);

// Descriptors beside bytes, over a local connection. Both return whether all went well;
// what was received closes with the process's exec. errno is EMFILE where there was no
// room for a descriptor.
bool send_with(int socket, const void* data, std::size_t size,
               const std::vector<int>& descriptors);
bool receive_with(int socket, void* data, std::size_t size, std::size_t num_descriptors,
                  std::vector<int>& descriptors);

}  // namespace drivetrain
