// The C interface of the library that PyTorch loads. Its allocators are those of this
// process, whoever asks.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace drivetrain {
class Allocator;
}

extern "C" {

// What PyTorch's pluggable allocator calls. These functions throw where PyTorch expects
// it.
void* drivetrain_memory_torch_allocate(std::size_t size, int device, void* stream);
void drivetrain_memory_torch_free(void* at, std::size_t size, int device, void* stream);
void drivetrain_memory_torch_record_stream(void* at, void* stream);
void drivetrain_memory_torch_reset();
void drivetrain_memory_torch_limit(double part, int device);
void* drivetrain_memory_torch_base(void* at, std::size_t* size);
void drivetrain_memory_torch_begin_pool(int device,
                                        std::pair<std::uint64_t, std::uint64_t> id,
                                        std::function<bool(void*)> filter);
void drivetrain_memory_torch_end_pool(int device,
                                      std::pair<std::uint64_t, std::uint64_t> id);
void drivetrain_memory_torch_release_pool(int device,
                                          std::pair<std::uint64_t, std::uint64_t> id);

// How the hooks make their allocators. Throws MisuseError where they did so already.
void drivetrain_memory_configure(std::uint64_t capacity, double headroom, bool peers,
                                 const char* library);

// Every allocator that the hooks use, or will, keeps the last entries of what happens.
void drivetrain_memory_keep_history(std::uint64_t most);

// The number of a tag by its name, never 0. Throws MisuseError for no name, and for one
// that is new where it may not be.
std::uint64_t drivetrain_memory_tag(const char* name, bool may_be_new);
// What this thread allocates from now on sleeps and wakes with a tag. Returns the one
// before; 0 for none.
std::uint64_t drivetrain_memory_set_tag(std::uint64_t tag);

// The allocator that the hooks use for a device; null before they did.
drivetrain::Allocator* drivetrain_memory_of_device(int device);
}
