#include "hooks.hpp"

#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include "../error.hpp"
#include "devices.hpp"
#include "torch_error.hpp"

#define DRIVETRAIN_HOOK extern "C" __attribute__((visibility("default")))

namespace {

using namespace drivetrain;

// Of what this thread allocates.
thread_local std::uint64_t current_tag = 0;

// For hooks that are called where nothing may be thrown.
template <class F>
void without_throwing(const char* what, F f) {
  try {
    f();
  } catch (const std::exception& thrown) {
    std::fprintf(stderr, "drivetrain-memory: %s: %s\n", what, thrown.what());
  }
}

}  // namespace

DRIVETRAIN_HOOK void* drivetrain_memory_torch_allocate(std::size_t size, int device,
                                                       void* stream) {
  if (size == 0) {
    return nullptr;
  }
  const auto on = reinterpret_cast<Stream>(stream);
  try {
    Devices::Device& found = Devices::of_process().of(device);
    const Address at =
        found.allocator.allocate(size, on, {found.pools.graph_of(on), current_tag});
    return reinterpret_cast<void*>(at);
  } catch (const OutOfMemory& thrown) {
    throw_out_of_memory("CUDA out of memory. " + std::string(thrown.what()));
  }
}

DRIVETRAIN_HOOK void drivetrain_memory_torch_free(void* at, std::size_t, int device,
                                                  void*) {
  without_throwing("free", [&] {
    Devices::of_process().of(device).allocator.free(reinterpret_cast<Address>(at));
  });
}

DRIVETRAIN_HOOK void drivetrain_memory_torch_record_stream(void* at, void* stream) {
  const auto address = reinterpret_cast<Address>(at);
  Devices::Device* owner = Devices::of_process().owner(address);
  if (owner == nullptr) {
    return;
  }
  try {
    owner->allocator.record_stream(address, reinterpret_cast<Stream>(stream));
  } catch (const MisuseError&) {
    // As PyTorch's own allocator does: what it does not know is somebody else's.
  }
}

// torch.cuda.empty_cache
DRIVETRAIN_HOOK void drivetrain_memory_torch_reset() {
  for (int number = 0; number < Devices::kMost; ++number) {
    if (Devices::Device* device = Devices::of_process().find(number)) {
      device->allocator.trim();
    }
  }
}

DRIVETRAIN_HOOK void drivetrain_memory_torch_limit(double part, int device) {
  Devices::of_process().limit(device, part);
}

DRIVETRAIN_HOOK void* drivetrain_memory_torch_base(void* at, std::size_t* size) {
  const auto address = reinterpret_cast<Address>(at);
  if (Devices::Device* owner = Devices::of_process().owner(address)) {
    if (const auto block = owner->allocator.block_around(address)) {
      *size = block->second;
      return reinterpret_cast<void*>(block->first);
    }
  }
  throw MisuseError("no live block at this address");
}

DRIVETRAIN_HOOK void drivetrain_memory_torch_begin_pool(
    int device, std::pair<std::uint64_t, std::uint64_t> id,
    std::function<bool(void*)> filter) {
  Devices::of_process().of(device).pools.begin(id, std::move(filter));
  Devices::of_process().process().expect_captures(true);
}

DRIVETRAIN_HOOK void drivetrain_memory_torch_end_pool(
    int device, std::pair<std::uint64_t, std::uint64_t> id) {
  if (Devices::of_process().of(device).pools.end(id)) {
    Devices::of_process().process().expect_captures(false);
  }
}

DRIVETRAIN_HOOK void drivetrain_memory_torch_release_pool(
    int device, std::pair<std::uint64_t, std::uint64_t> id) {
  without_throwing("release of a pool", [&] {
    Devices::Device& found = Devices::of_process().of(device);
    if (const auto graph = found.pools.release(id)) {
      found.allocator.release_graph(*graph);
    }
  });
}

DRIVETRAIN_HOOK void drivetrain_memory_configure(std::uint64_t capacity,
                                                 double headroom, bool peers,
                                                 const char* library) {
  Devices::of_process().configure({Options{capacity, headroom, 0}, peers, library, 0});
}

DRIVETRAIN_HOOK std::uint64_t drivetrain_memory_tag(const char* name, bool may_be_new) {
  ProcessState& process = Devices::of_process().process();
  return may_be_new ? process.tag_of(name) : process.known_tag(name);
}

DRIVETRAIN_HOOK std::uint64_t drivetrain_memory_set_tag(std::uint64_t tag) {
  return std::exchange(current_tag, tag);
}

DRIVETRAIN_HOOK void drivetrain_memory_keep_history(std::uint64_t most) {
  Devices::of_process().keep_history(most);
}

DRIVETRAIN_HOOK Allocator* drivetrain_memory_of_device(int number) {
  Devices::Device* device = Devices::of_process().find(number);
  return device == nullptr ? nullptr : &device->allocator;
}
