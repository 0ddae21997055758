#include "collective.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

#include "shadow.hpp"

namespace sim {

at::Tensor shadow(const at::Tensor& tensor) {
  return is_on_device(tensor) ? shadow_of(tensor) : tensor;
}

Tensors shadows(const Tensors& tensors) {
  Tensors made;
  for (const at::Tensor& tensor : tensors) made.push_back(shadow(tensor));
  return made;
}

TensorLists shadows(const TensorLists& lists) {
  TensorLists made;
  for (const Tensors& tensors : lists) made.push_back(shadows(tensors));
  return made;
}

Tensors joined(const Tensors& first, const Tensors& second) {
  Tensors all = first;
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

Tensors joined(const Tensors& first, const TensorLists& lists) {
  Tensors all = first;
  for (const Tensors& tensors : lists) all = joined(all, tensors);
  return all;
}

bool take_average(c10d::ReduceOp& op) {
  if (op != c10d::ReduceOp::AVG) return false;
  op = c10d::ReduceOp::SUM;
  return true;
}

void run_collectives(const std::vector<Collective>& collectives) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<std::vector<WorkPtr>> started;
  for (const Collective& it : collectives) started.push_back(it.start());
  for (std::size_t i = 0; i < collectives.size(); ++i) {
    for (const WorkPtr& work : started[i]) work->wait();
    if (collectives[i].finish) collectives[i].finish();
  }
}

std::string names_of(const std::vector<Collective>& collectives) {
  std::string names;
  for (const Collective& it : collectives) {
    names += (names.empty() ? "" : ", ") + it.name();
  }
  return names;
}

}  // namespace sim
