#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

namespace sim {

// The device's random numbers: a seed, and how many draws were made.
//
// A draw is made when an op is queued, not when it runs, so that the state is right at
// once and a stream's thread never touches the host's generator.
class SimGenerator final : public c10::GeneratorImpl {
 public:
  explicit SimGenerator(int device);

  void set_current_seed(std::uint64_t seed) override;
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override;
  void set_offset(std::uint64_t offset) override { num_draws_ = offset; }
  std::uint64_t get_offset() const override { return num_draws_; }
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // A CPU generator for the next op.
  at::Generator draw();

 private:
  SimGenerator* clone_impl() const override;

  std::uint64_t seed_;
  std::uint64_t num_draws_ = 0;
};

const at::Generator& default_generator(int device);
at::Generator new_generator(int device);

// The device's generator that an op's argument names; the default one if it names none.
SimGenerator& generator_of(const std::optional<at::Generator>& argument, int device);

}  // namespace sim
