#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "generator.hpp"
#include "op_facts.hpp"
#include "stream_queue.hpp"

namespace sim {

// Where a result of the CPU kernel is copied to.
struct Destination {
  std::size_t result = 0;
  std::size_t index_in_list = 0;
  at::Tensor shadow;
};

// A call of a CPU kernel on the bytes of device tensors. It may run several times, if a
// graph has captured it.
struct OpCall {
  explicit OpCall(const c10::OperatorHandle& handle) : op(handle) {}

  // Runs the kernel in this thread on arguments like those of the call, and returns its
  // results. Its warnings are appended to a list.
  torch::jit::Stack run(torch::jit::Stack stack,
                        std::vector<c10::Warning>& warnings) const;

  // Runs it with the delay of an op, and writes its results to the device.
  void run_slowly() const;

  // Returns the work of a stream, with the random numbers of now.
  Work make_work() const;

  c10::OperatorHandle op;
  OpFacts* facts = nullptr;
  torch::jit::Stack arguments;
  std::vector<Destination> destinations;
  // Threads of the host are set per thread: results differ in the last bits otherwise.
  int num_threads = 1;
  // Draws the number that the generator argument is seeded with; null without one.
  c10::intrusive_ptr<c10::GeneratorImpl> generator;

  // The arguments, with random numbers of now.
  torch::jit::Stack drawn_arguments() const;

 private:
  torch::jit::Stack run_into_new_results(std::vector<c10::Warning>& warnings) const;
};

// Makes the call for arguments of the device: aliases of their bytes, clones of CPU
// tensors, whose owner may change them.
std::shared_ptr<OpCall> make_call(const c10::OperatorHandle& op, OpFacts& facts,
                                  c10::ArrayRef<c10::IValue> arguments, int device);

void copy_results(const torch::jit::Stack& results,
                  const std::vector<Destination>& destinations);

}  // namespace sim
