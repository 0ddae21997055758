// Calls the hooks as PyTorch does, with PyTorch's own error type, on a CUDA driver that
// needs no GPU.
//
// Arguments: the package's library, and the driver's.

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

namespace {

using Id = std::pair<std::uint64_t, std::uint64_t>;
constexpr std::size_t kMiB = std::size_t{1} << 20;

int failures = 0;

void expect(bool holds, const char* what) {
  std::printf("%s: %s\n", holds ? "ok" : "WRONG", what);
  failures += !holds;
}

void* open_library(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(2);
  }
  return library;
}

template <class Function>
Function* find(void* library, const std::string& name) {
  void* found = dlsym(library, name.c_str());
  if (found == nullptr) {
    std::fprintf(stderr, "there is no %s\n", name.c_str());
    std::exit(2);
  }
  return reinterpret_cast<Function*>(found);
}

void* stream(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

}  // namespace

int main(int, char** arguments) {
  void* library = open_library(arguments[1]);
  void* driver = open_library(arguments[2]);
  const std::string torch = "drivetrain_memory_torch_";
  const auto allocate =
      find<void*(std::size_t, int, void*)>(library, torch + "allocate");
  const auto give = find<void(void*, std::size_t, int, void*)>(library, torch + "free");
  const auto record = find<void(void*, void*)>(library, torch + "record_stream");
  const auto reset = find<void()>(library, torch + "reset");
  const auto limit = find<void(double, int)>(library, torch + "limit");
  const auto base = find<void*(void*, std::size_t*)>(library, torch + "base");
  const auto begin =
      find<void(int, Id, std::function<bool(void*)>)>(library, torch + "begin_pool");
  const auto end = find<void(int, Id)>(library, torch + "end_pool");
  const auto release = find<void(int, Id)>(library, torch + "release_pool");
  const auto configure = find<void(std::uint64_t, double, bool, const char*)>(
      library, "drivetrain_memory_configure");
  const auto count = find<std::uint64_t(int)>(driver, "fake_cuda_count");
  const auto set = find<void(std::uint64_t, int, int)>(driver, "fake_cuda_configure");
  const auto chunks = [&] { return count(0); };

  // Both devices are one in truth, and get half of it each.
  set(128 * kMiB, 2, 1);
  configure(64 * kMiB, -1.0, false, arguments[2]);

  expect(allocate(0, 0, nullptr) == nullptr, "no bytes are no memory");
  auto* first = static_cast<char*>(allocate(10 * kMiB, 0, nullptr));
  std::memset(first, 1, 10 * kMiB);
  std::size_t size = 0;
  expect(base(first + 5 * kMiB, &size) == first && size == 10 * kMiB,
         "the base of an address is its block");
  bool refused = false;
  try {
    configure(64 * kMiB, -1.0, false, arguments[2]);
  } catch (const std::exception&) {
    refused = true;
  }
  expect(refused, "not configured again while in use");

  refused = false;
  try {
    allocate(100 * kMiB, 0, nullptr);
  } catch (const c10::OutOfMemoryError& error) {
    refused = std::string(error.what())
                  .find(
                      "CUDA out of memory. Tried to allocate "
                      "100.00 MiB") != std::string::npos;
  }
  expect(refused, "PyTorch's own out-of-memory error");
  refused = false;
  try {
    allocate(kMiB, 7, nullptr);
  } catch (const std::exception& error) {
    refused = dynamic_cast<const c10::OutOfMemoryError*>(&error) == nullptr;
  }
  expect(refused, "no such device is another error");

  // Both used on a second stream: not reused before that one is done.
  record(first, stream(9));
  give(first, 10 * kMiB, 0, nullptr);
  allocate(64 * kMiB, 0, stream(9));
  expect(chunks() == 32, "what another stream used comes back");
  reset();
  expect(chunks() == 32, "what is live stays when the cache is emptied");

  // The other device has memory of its own.
  void* other = allocate(4 * kMiB, 1, nullptr);
  const Id pool{0, 1};
  begin(1, pool, [](void* on) { return on == stream(3); });
  void* of_graph = allocate(4 * kMiB, 1, stream(3));
  end(1, pool);
  give(of_graph, 4 * kMiB, 1, stream(3));
  const std::uint64_t before = chunks();
  void* outside = allocate(4 * kMiB, 1, stream(3));
  expect(outside != of_graph && chunks() == before + 2,
         "memory of a pool serves nobody else");
  begin(1, pool, [](void* on) { return on == stream(3); });
  expect(allocate(4 * kMiB, 1, stream(3)) == of_graph,
         "memory of a pool serves the pool again");
  give(of_graph, 4 * kMiB, 1, stream(3));
  end(1, pool);
  release(1, pool);
  reset();
  expect(chunks() == before + 2, "a pool lives as long as one user of it");
  release(1, pool);
  reset();
  expect(chunks() == before, "a pool that is released goes back");
  give(other, 4 * kMiB, 1, nullptr);
  give(outside, 4 * kMiB, 1, stream(3));

  limit(0.0625, 1);
  refused = false;
  try {
    allocate(9 * kMiB, 1, nullptr);
  } catch (const c10::OutOfMemoryError&) {
    refused = true;
  }
  expect(refused, "a part of the memory is a limit");
  give(&size, 8, 1, nullptr);
  give(outside, 4 * kMiB, 1, stream(3));
  expect(true, "a pointer that is not ours, or freed twice, ends nothing");
  return failures == 0 ? 0 : 1;
}
