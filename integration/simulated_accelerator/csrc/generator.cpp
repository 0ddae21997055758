#include "generator.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <cstring>
#include <vector>

#include "settings.hpp"
#include "streams.hpp"

namespace sim {
namespace {

constexpr std::size_t kStateBytes = 16;

// SplitMix64's finalizer: neighbouring draws get seeds that are far apart.
std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 30;
  value *= 0xBF58476D1CE4E5B9ULL;
  value ^= value >> 27;
  value *= 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

std::vector<at::Generator> make_all() {
  std::vector<at::Generator> made;
  for (int device = 0; device < kMaxDevices; ++device) {
    made.push_back(at::make_generator<SimGenerator>(device));
  }
  return made;
}

}  // namespace

SimGenerator::SimGenerator(int device)
    : c10::GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1,
                                     static_cast<c10::DeviceIndex>(device)),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      seed_(c10::default_rng_seed_val) {}

void SimGenerator::set_current_seed(std::uint64_t seed) {
  seed_ = seed;
  num_draws_ = 0;
}

std::uint64_t SimGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void SimGenerator::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK(state.numel() == kStateBytes && state.is_cpu() &&
                  state.dtype() == caffe2::TypeMeta::Make<std::uint8_t>(),
              "a random state of a simulated device is a CPU tensor of ", kStateBytes,
              " bytes, not one of ", state.numel(), " elements");
  const char* data = static_cast<const char*>(state.data());
  std::memcpy(&seed_, data, sizeof seed_);
  std::memcpy(&num_draws_, data + sizeof seed_, sizeof num_draws_);
}

c10::intrusive_ptr<c10::TensorImpl> SimGenerator::get_state() const {
  // Not through the dispatcher, where a fake tensor mode would give one without memory.
  at::Tensor state = at::detail::empty_cpu({kStateBytes}, at::kByte);
  char* data = static_cast<char*>(state.data_ptr());
  std::memcpy(data, &seed_, sizeof seed_);
  std::memcpy(data + sizeof seed_, &num_draws_, sizeof num_draws_);
  return state.getIntrusivePtr();
}

at::Generator SimGenerator::draw() {
  std::lock_guard lock(mutex_);
  const std::uint64_t golden_ratio = 0x9E3779B97F4A7C15ULL;
  return at::make_generator<at::CPUGeneratorImpl>(
      mix(seed_ + golden_ratio * ++num_draws_));
}

SimGenerator* SimGenerator::clone_impl() const {
  auto* copy = new SimGenerator(device().index());
  copy->seed_ = seed_;
  copy->num_draws_ = num_draws_;
  return copy;
}

const at::Generator& default_generator(int device) {
  static const auto& all = *new std::vector<at::Generator>(make_all());
  check_index(device);
  return all[device];
}

at::Generator new_generator(int device) {
  check_index(device);
  return at::make_generator<SimGenerator>(device);
}

SimGenerator& generator_of(const std::optional<at::Generator>& argument, int device) {
  const bool is_given = argument && argument->defined();
  const at::Generator& generator = is_given ? *argument : default_generator(device);
  TORCH_CHECK(generator.device().type() == c10::DeviceType::PrivateUse1,
              "expected a generator of device sim:", device, ", got one of ",
              generator.device());
  return *static_cast<SimGenerator*>(generator.unsafeGetGeneratorImpl());
}

}  // namespace sim
