#pragma once

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace sim {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// What the stream of a process group runs: it starts Gloo's work, and finishes when
// that has ended.
struct Collective {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  // What it touches, and its results, on the device.
  Tensors tensors{};
  Tensors outputs{};
  std::function<std::vector<WorkPtr>()> start{};
  std::function<void()> finish{};
  int device = -1;
  // The peer of a send or a receive: each has a stream of its own, as NCCL does.
  int peer = -1;

  std::string name() const { return c10d::opTypeToString(type); }
};

// Starts all of them, and then waits for each: a send and a receive may need each
// other.
void run_collectives(const std::vector<Collective>& collectives);
std::string names_of(const std::vector<Collective>& collectives);

// Tensors of the CPU on the device's bytes.
at::Tensor shadow(const at::Tensor& tensor);
Tensors shadows(const Tensors& tensors);
TensorLists shadows(const TensorLists& lists);

Tensors joined(const Tensors& first, const Tensors& second);
Tensors joined(const Tensors& first, const TensorLists& lists);

// Makes an average a sum, which is divided afterwards: Gloo has no average.
bool take_average(c10d::ReduceOp& op);

}  // namespace sim
