// The C interface, called through ctypes. No function throws: what may fail takes a
// buffer for the error, which stays empty on success.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "engine.hpp"

#define DRIVETRAIN_EXPORT __attribute__((visibility("default")))

namespace {

using drivetrain::Engine;
using drivetrain::Program;
using drivetrain::Ticket;

struct Text {
  char data[512];
};

void say(Text* error, const char* what) {
  std::snprintf(error->data, sizeof error->data, "%s", what);
}

// Runs f; what it throws goes into the error.
template <class F>
auto guard(Text* error, F f) -> decltype(f()) {
  error->data[0] = '\0';
  try {
    return f();
  } catch (const std::exception& thrown) {
    say(error, thrown.what());
    return {};
  }
}

// Infinity is no number of nanoseconds, nor are some thousand years.
std::chrono::nanoseconds nanoseconds(double seconds) {
  const std::chrono::duration<double> most(1e9);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::min(std::chrono::duration<double>(seconds), most));
}

struct Call {
  std::uint64_t group;
  const std::shared_ptr<const Program>* program;
  std::uint32_t plan;
  std::int32_t type;
  std::int32_t operation;
  std::uint32_t num_channels;
  std::uint64_t segment_bytes;
  double factor;
  double timeout_s;
  const drivetrain::Piece* pieces;
  std::uint64_t num_pieces;
};

}  // namespace

extern "C" {

DRIVETRAIN_EXPORT Engine* drivetrain_comm_v1_start(const char* host,
                                                   const char* local_name,
                                                   std::uint16_t* port, Text* error) {
  return guard(error, [&]() -> Engine* {
    auto engine = std::make_unique<Engine>(host, local_name);
    *port = engine->port();
    return engine.release();
  });
}

DRIVETRAIN_EXPORT void drivetrain_comm_v1_stop(Engine* engine) { delete engine; }

DRIVETRAIN_EXPORT std::uint64_t drivetrain_comm_v1_add_group(
    Engine* engine, const std::uint8_t* token, std::int32_t rank,
    std::int32_t num_ranks, std::int32_t buffer_bytes) {
  drivetrain::Token copy;
  std::memcpy(copy.data(), token, copy.size());
  return engine->add_group(copy, rank, num_ranks, buffer_bytes);
}

DRIVETRAIN_EXPORT void drivetrain_comm_v1_set_address(
    Engine* engine, std::uint64_t group, std::int32_t peer, const char* host,
    std::uint16_t port, const char* local_name) {
  engine->set_address(group, peer, {host, port, local_name});
}

DRIVETRAIN_EXPORT void drivetrain_comm_v1_fail_group(Engine* engine,
                                                     std::uint64_t group,
                                                     const char* why) {
  engine->fail_group(group, why);
}

DRIVETRAIN_EXPORT void drivetrain_comm_v1_remove_group(Engine* engine,
                                                       std::uint64_t group) {
  engine->remove_group(group);
}

DRIVETRAIN_EXPORT std::shared_ptr<const Program>* drivetrain_comm_v1_make_program(
    const drivetrain::Step* steps, std::uint64_t num_steps, std::int32_t num_chunks,
    std::int32_t num_ranks, Text* error) {
  return guard(error, [&]() -> std::shared_ptr<const Program>* {
    std::vector<drivetrain::Step> copy(steps, steps + num_steps);
    auto program =
        std::make_shared<const Program>(std::move(copy), num_chunks, num_ranks);
    return new std::shared_ptr<const Program>(std::move(program));
  });
}

DRIVETRAIN_EXPORT void drivetrain_comm_v1_free_program(
    std::shared_ptr<const Program>* program) {
  delete program;
}

DRIVETRAIN_EXPORT std::shared_ptr<Ticket>* drivetrain_comm_v1_submit(Engine* engine,
                                                                     const Call* call,
                                                                     Text* error) {
  return guard(error, [&]() -> std::shared_ptr<Ticket>* {
    const auto now = std::chrono::steady_clock::now();
    auto ticket = std::make_shared<Ticket>();
    drivetrain::Request request{
        *call->program,
        call->plan,
        drivetrain::Pieces({call->pieces, call->pieces + call->num_pieces}),
        static_cast<drivetrain::Type>(call->type),
        static_cast<drivetrain::Operation>(call->operation),
        call->factor,
        call->num_channels,
        call->segment_bytes,
        now + nanoseconds(call->timeout_s),
        ticket};
    engine->submit(call->group, std::move(request));
    return new std::shared_ptr<Ticket>(std::move(ticket));
  });
}

// Returns 1 when the collective has ended, and why it failed, if so; 0 after the time.
DRIVETRAIN_EXPORT int drivetrain_comm_v1_wait(std::shared_ptr<Ticket>* ticket,
                                              double timeout_s, Text* error) {
  error->data[0] = '\0';
  if (!(*ticket)->wait_for(nanoseconds(timeout_s))) return 0;
  say(error, (*ticket)->error().c_str());
  return 1;
}

DRIVETRAIN_EXPORT double drivetrain_comm_v1_ended_at_s(
    std::shared_ptr<Ticket>* ticket) {
  return (*ticket)->ended_at_s();
}

DRIVETRAIN_EXPORT void drivetrain_comm_v1_free_ticket(std::shared_ptr<Ticket>* ticket) {
  delete ticket;
}

}  // extern "C"
