#include "copy.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/narrow.h>
#include <ATen/ops/resize_native.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "argument_checks.hpp"
#include "event.hpp"
#include "health.hpp"
#include "pinned.hpp"
#include "settings.hpp"
#include "shadow.hpp"
#include "streams.hpp"

namespace sim {
namespace {

using at::Tensor;

std::int64_t longest_dim(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return std::max_element(sizes.begin(), sizes.end()) - sizes.begin();
}

// Copies one half, takes its time, and copies the other: what changes the source too
// early, or reads the destination, then shows, whichever comes first.
void copy_slowly(const Tensor& from, const Tensor& to, std::int64_t delay_us) {
  if (delay_us == 0 || from.numel() < 2 || from.sizes() != to.sizes()) {
    sleep_us(delay_us);
    to.copy_(from);
    return;
  }
  const std::int64_t dim = longest_dim(from);
  const std::int64_t half = from.size(dim) / 2;
  const std::int64_t rest = from.size(dim) - half;
  to.narrow(dim, 0, half).copy_(from.narrow(dim, 0, half));
  sleep_us(delay_us);
  to.narrow(dim, half, rest).copy_(from.narrow(dim, half, rest));
}

void push_copy(StreamQueue& queue, Tensor from, Tensor to,
               const std::atomic<std::int64_t>& delay_us) {
  queue.push([from = std::move(from), to = std::move(to), &delay_us] {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    copy_slowly(from, to, delay_us);
  });
}

// A host that reads the destination of a queued copy too early finds NaN, not a
// plausible older value.
void poison(const Tensor& host) {
  if (!settings().poison) return;
  if (host.is_non_overlapping_and_dense()) {
    std::memset(host.mutable_data_ptr(), 0xFF, host.nbytes());
  } else if (host.is_floating_point()) {
    host.fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

void copy_to_device(const Tensor& from, const Tensor& to, bool non_blocking) {
  StreamQueue& queue = current_queue(to.device().index());
  const bool pinned = is_pinned(from.storage().data());
  const Tensor source = pinned ? unowned_view_of(from) : from.clone();
  push_copy(queue, source, shadow_of(to), delays().copy_us);
  if (pinned) record_pinned_use(from.storage().data(), queue);
  if (!non_blocking) queue.synchronize();
}

void copy_to_host(const Tensor& from, const Tensor& to, bool non_blocking) {
  StreamQueue& queue = current_queue(from.device().index());
  const bool pinned = is_pinned(to.storage().data());
  const bool is_queued = pinned && non_blocking;
  if (is_queued) poison(to);
  push_copy(queue, shadow_of(from), unowned_view_of(to), delays().copy_us);
  if (pinned) record_pinned_use(to.storage().data(), queue);
  if (!is_queued) queue.synchronize();
}

void copy_between_devices(const Tensor& from, const Tensor& to) {
  StreamQueue& sender = current_queue(from.device().index());
  StreamQueue& receiver = current_queue(to.device().index());
  const auto ready = std::make_shared<Event>(/*timing=*/false);
  ready->record(receiver);
  ready->block(sender);
  push_copy(sender, shadow_of(from), shadow_of(to), delays().copy_us);
  const auto copied = std::make_shared<Event>(/*timing=*/false);
  copied->record(sender);
  copied->block(receiver);
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, /*non_blocking=*/false);
}

}  // namespace

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const Tensor* tensor : {&from, &to}) {
    check_layout("aten::copy_", *tensor);
    if (!is_on_device(*tensor)) continue;
    check_dtype("aten::copy_", tensor->scalar_type());
    check_launch(tensor->device().index());
  }
  if (to.numel() == 0) return to;
  if (!is_on_device(from)) {
    copy_to_device(from, to, non_blocking);
  } else if (!is_on_device(to)) {
    copy_to_host(from, to, non_blocking);
  } else if (from.device() != to.device()) {
    copy_between_devices(from, to);
  } else {
    push_copy(current_queue(to.device().index()), shadow_of(from), shadow_of(to),
              delays().op_us);
  }
  return to;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
}

// A copy honours these bits itself. Torch would resolve them first, by a copy.
void take_lazy_bits(torch::Library& m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Conjugate, m) { take_lazy_bits(m); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { take_lazy_bits(m); }

}  // namespace sim
