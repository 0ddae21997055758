#include "collective_work.hpp"

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>

#include <thread>

#include "allocator.hpp"
#include "gil.hpp"
#include "health.hpp"
#include "shadow.hpp"
#include "streams.hpp"

namespace sim {

void Outcome::fail(const std::string& message) {
  std::lock_guard lock(mutex_);
  if (message_.empty()) message_ = message;
}

std::string Outcome::message() const {
  std::lock_guard lock(mutex_);
  return message_;
}

std::exception_ptr Outcome::error() const {
  const std::string why = message();
  if (why.empty()) return nullptr;
  return std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, __LINE__}, why));
}

CollectiveWork::CollectiveWork(int rank, c10d::OpType type, std::string name,
                               int device, std::int64_t stream,
                               std::vector<at::Tensor> tensors,
                               std::vector<at::Tensor> outputs)
    : Work(rank, type),
      name_(std::move(name)),
      device_(device),
      stream_(stream),
      end_(std::make_shared<Event>(/*timing=*/true)),
      outcome_(std::make_shared<Outcome>()),
      tensors_(std::move(tensors)),
      outputs_(std::move(outputs)) {}

CollectiveWork::~CollectiveWork() {
  // Nobody has waited: the collective may still run.
  for (const at::Tensor& tensor : tensors_) {
    if (!is_on_device(tensor) || is_in_bad_fork()) continue;
    allocator()->recordStream(
        tensor.storage().data_ptr(),
        c10::Stream(c10::Stream::UNSAFE, tensor.device(), stream_));
  }
}

void CollectiveWork::finish_queueing() {
  end_->record(stream_queue(device_, stream_));
  const c10::Device device(c10::DeviceType::PrivateUse1,
                           static_cast<c10::DeviceIndex>(device_));
  // The future takes the current stream's state as the moment when its value is ready.
  c10::StreamGuard guard(c10::Stream(c10::Stream::UNSAFE, device, stream_));
  future_ = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device});
  future_->markCompleted(c10::IValue(outputs_));
}

bool CollectiveWork::isCompleted() {
  return !outcome_->message().empty() || is_broken(device_) || end_->query();
}

bool CollectiveWork::isSuccess() const {
  return outcome_->message().empty() && !is_broken(device_) && end_->query();
}

std::exception_ptr CollectiveWork::exception() const {
  if (auto error = outcome_->error()) return error;
  try {
    check_launch(device_);
  } catch (const c10::Error&) {
    return std::current_exception();
  }
  return nullptr;
}

void CollectiveWork::rethrow_error() const {
  if (auto error = exception()) std::rethrow_exception(error);
}

void CollectiveWork::synchronize() {
  end_->block(current_queue(device_));
  tensors_.clear();
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  rethrow_error();
  synchronize();
  if (timeout > kNoTimeout) {
    wait_on_host(timeout);
    rethrow_error();
  }
  // A barrier is one for the hosts as well.
  if (opType_ == c10d::OpType::BARRIER) current_queue(device_).synchronize();
  return true;
}

void CollectiveWork::wait_on_host(std::chrono::milliseconds timeout) {
  ReleaseGil release;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!isCompleted()) {
    TORCH_CHECK_WITH(DistBackendError, std::chrono::steady_clock::now() < deadline,
                     "collective ", name_, " did not end within ", timeout.count(),
                     " ms");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace sim
