#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "event.hpp"

namespace sim {

// How a collective ended; the stream that runs it writes it.
class Outcome {
 public:
  void fail(const std::string& message);
  // Why it failed; empty unless it has.
  std::string message() const;
  // The same as torch's DistBackendError; null unless it has failed.
  std::exception_ptr error() const;

 private:
  mutable std::mutex mutex_;
  std::string message_;
};

// A collective that is queued on a stream. `wait` makes the current stream wait, not
// the host, unless it is given a time limit.
class CollectiveWork final : public c10d::Work {
 public:
  CollectiveWork(int rank, c10d::OpType type, std::string name, int device,
                 std::int64_t stream, std::vector<at::Tensor> tensors,
                 std::vector<at::Tensor> outputs);
  ~CollectiveWork() override;

  // Marks the end: called once the collective is queued.
  void finish_queueing();
  std::shared_ptr<Outcome> outcome() const { return outcome_; }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void blockCurrentStream() override { synchronize(); }
  void abort() override {}
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  void rethrow_error() const;
  void wait_on_host(std::chrono::milliseconds timeout);

  const std::string name_;
  const int device_;
  const std::int64_t stream_;
  std::shared_ptr<Event> end_;
  std::shared_ptr<Outcome> outcome_;
  // Kept until somebody waits: a freed tensor's memory would be used again.
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace sim
