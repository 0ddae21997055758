#include "simccl.hpp"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "collective.hpp"
#include "collective_work.hpp"
#include "health.hpp"
#include "settings.hpp"
#include "shadow.hpp"
#include "streams.hpp"

namespace sim {
namespace {

using at::Tensor;
using c10d::OpType;

std::atomic<std::uint64_t> num_groups{0};

class Simccl final : public c10d::Backend {
 public:
  Simccl(c10::intrusive_ptr<Backend> gloo, std::chrono::milliseconds timeout)
      : Backend(gloo->getRank(), gloo->getSize()),
        gloo_(std::move(gloo)),
        group_(++num_groups),
        options_(c10::make_intrusive<Options>("simccl", timeout)) {}

  ~Simccl() override { forget_group(group_); }

  const std::string getBackendName() const override { return "simccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    options_->timeout = timeout;
    gloo_->setTimeout(timeout);
  }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  std::uint64_t getSequenceNumberForGroup() override {
    return gloo_->getSequenceNumberForGroup();
  }

  // Ends what is pending with an error, and forgets the errors of this group.
  void abort() override {
    gloo_->abort();
    forget_group(group_);
  }
  void shutdown() override {
    gloo_->shutdown();
    forget_group(group_);
  }

  void startCoalescing() override {
    TORCH_CHECK(!coalescing_, "this group is already coalescing");
    coalescing_ = true;
  }

  WorkPtr endCoalescing() override {
    TORCH_CHECK(coalescing_, "this group is not coalescing");
    coalescing_ = false;
    std::vector<Collective> collected = std::exchange(collected_, {});
    if (collected.empty()) return nullptr;
    return queue(std::move(collected), OpType::COALESCED);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return run({.type = OpType::BROADCAST,
                .tensors = tensors,
                .outputs = tensors,
                .start = [gloo = gloo_, it = shadows(tensors), options]() mutable {
                  return std::vector{gloo->broadcast(it, options)};
                }});
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& given) override {
    c10d::AllreduceOptions options = given;
    const bool average = take_average(options.reduceOp);
    const Tensors its = shadows(tensors);
    return run({.type = OpType::ALLREDUCE,
                .tensors = tensors,
                .outputs = tensors,
                .start =
                    [gloo = gloo_, its = its, options]() mutable {
                      return std::vector{gloo->allreduce(its, options)};
                    },
                .finish = dividing(its, average)});
  }

  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& given) override {
    c10d::AllreduceOptions options;
    options.reduceOp = given.reduceOp;
    options.timeout = given.timeout;
    const bool average = take_average(options.reduceOp);
    const Tensors its = shadows(tensors);
    return run({.type = OpType::ALLREDUCE_COALESCED,
                .tensors = tensors,
                .outputs = tensors,
                .start =
                    [gloo = gloo_, its = its, options] {
                      std::vector<WorkPtr> started;
                      for (const Tensor& it : its) {
                        Tensors one{it};
                        started.push_back(gloo->allreduce(one, options));
                      }
                      return started;
                    },
                .finish = dividing(its, average)});
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& given) override {
    c10d::ReduceOptions options = given;
    const bool average = take_average(options.reduceOp);
    const Tensors its = shadows(tensors);
    const bool is_root = options.rootRank == getRank();
    return run({.type = OpType::REDUCE,
                .tensors = tensors,
                .outputs = tensors,
                .start =
                    [gloo = gloo_, its = its, options]() mutable {
                      return std::vector{gloo->reduce(its, options)};
                    },
                .finish = dividing(its, average && is_root)});
  }

  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    return run({.type = OpType::ALLGATHER,
                .tensors = joined(inputs, outputs),
                .outputs = outputs.at(0),
                .start = [gloo = gloo_, to = shadows(outputs), from = shadows(inputs),
                          options]() mutable {
                  return std::vector{gloo->allgather(to, from, options)};
                }});
  }

  WorkPtr _allgather_base(Tensor& output, Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return run({.type = OpType::_ALLGATHER_BASE,
                .tensors = {output, input},
                .outputs = {output},
                .start = [gloo = gloo_, to = shadow(output), from = shadow(input),
                          options]() mutable {
                  return std::vector{gloo->_allgather_base(to, from, options)};
                }});
  }

  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    return run({.type = OpType::COALESCED,
                .tensors = joined(outputs, inputs),
                .outputs = outputs,
                .start = [gloo = gloo_, to = shadows(outputs), from = shadows(inputs),
                          options]() mutable {
                  std::vector<WorkPtr> started;
                  for (std::size_t i = 0; i < to.size(); ++i) {
                    started.push_back(gloo->_allgather_base(to[i], from[i], options));
                  }
                  return started;
                }});
  }

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& given) override {
    c10d::ReduceScatterOptions options = given;
    const bool average = take_average(options.reduceOp);
    const Tensors to = shadows(outputs);
    return run({.type = OpType::REDUCE_SCATTER,
                .tensors = joined(outputs, inputs),
                .outputs = outputs,
                .start =
                    [gloo = gloo_, to = to, from = shadows(inputs), options]() mutable {
                      return std::vector{gloo->reduce_scatter(to, from, options)};
                    },
                .finish = dividing(to, average)});
  }

  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input,
                               const c10d::ReduceScatterOptions& given) override {
    Tensors outputs{output}, inputs{input};
    return reduce_scatter_bases(OpType::_REDUCE_SCATTER_BASE, outputs, inputs, given);
  }

  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::ReduceScatterOptions& given) override {
    return reduce_scatter_bases(OpType::_REDUCE_SCATTER_BASE, outputs, inputs, given);
  }

  WorkPtr alltoall_base(Tensor& output, Tensor& input,
                        std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes,
                        const c10d::AllToAllOptions& options) override {
    return run({.type = OpType::ALLTOALL_BASE,
                .tensors = {output, input},
                .outputs = {output},
                .start = [gloo = gloo_, to = shadow(output), from = shadow(input),
                          output_sizes, input_sizes, options]() mutable {
                  return std::vector{gloo->alltoall_base(to, from, output_sizes,
                                                         input_sizes, options)};
                }});
  }

  // Gloo has it for one tensor alone: each pair of ranks exchanges its parts.
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions&) override {
    constexpr int kTag = 0x5A2A;
    return run({.type = OpType::ALLTOALL,
                .tensors = joined(outputs, inputs),
                .outputs = outputs,
                .start = [gloo = gloo_, to = shadows(outputs), from = shadows(inputs),
                          rank = getRank()] {
                  std::vector<WorkPtr> started;
                  for (int peer = 0; peer < static_cast<int>(to.size()); ++peer) {
                    const auto index = static_cast<std::size_t>(peer);
                    if (peer == rank) {
                      to[index].copy_(from[index]);
                      continue;
                    }
                    Tensors sent{from[index].contiguous()}, received{to[index]};
                    started.push_back(gloo->send(sent, peer, kTag));
                    started.push_back(gloo->recv(received, peer, kTag));
                  }
                  return started;
                }});
  }

  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const c10d::ScatterOptions& options) override {
    return run({.type = OpType::SCATTER,
                .tensors = joined(outputs, inputs),
                .outputs = outputs,
                .start = [gloo = gloo_, to = shadows(outputs), from = shadows(inputs),
                          options]() mutable {
                  return std::vector{gloo->scatter(to, from, options)};
                }});
  }

  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    return run({.type = OpType::GATHER,
                .tensors = joined(inputs, outputs),
                .outputs = outputs.empty() ? Tensors{} : outputs.at(0),
                .start = [gloo = gloo_, to = shadows(outputs), from = shadows(inputs),
                          options]() mutable {
                  return std::vector{gloo->gather(to, from, options)};
                }});
  }

  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    return run(
        {.type = OpType::SEND,
         .tensors = tensors,
         .outputs = tensors,
         .start = [gloo = gloo_, its = shadows(tensors), peer,
                   tag]() mutable { return std::vector{gloo->send(its, peer, tag)}; },
         .peer = peer});
  }

  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return run(
        {.type = OpType::RECV,
         .tensors = tensors,
         .outputs = tensors,
         .start = [gloo = gloo_, its = shadows(tensors), peer,
                   tag]() mutable { return std::vector{gloo->recv(its, peer, tag)}; },
         .peer = peer});
  }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return run({.type = OpType::RECVANYSOURCE,
                .tensors = tensors,
                .outputs = tensors,
                .start =
                    [gloo = gloo_, its = shadows(tensors), tag]() mutable {
                      return std::vector{gloo->recvAnysource(its, tag)};
                    },
                .peer = getRank()});
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    const int device = barrier_device(options);
    return run({.type = OpType::BARRIER,
                .start = [gloo = gloo_,
                          options] { return std::vector{gloo->barrier(options)}; }},
               device);
  }

 private:
  static int barrier_device(const c10d::BarrierOptions& options) {
    if (options.device) return options.device->index();
    if (!options.device_ids.empty()) return static_cast<int>(options.device_ids[0]);
    return current_device();
  }

  std::function<void()> dividing(const Tensors& tensors, bool average) const {
    if (!average) return nullptr;
    return [tensors, size = getSize()] {
      for (const Tensor& tensor : tensors) tensor.div_(size);
    };
  }

  WorkPtr reduce_scatter_bases(OpType type, const Tensors& outputs,
                               const Tensors& inputs,
                               const c10d::ReduceScatterOptions& given) {
    c10d::ReduceScatterOptions options = given;
    const bool average = take_average(options.reduceOp);
    const Tensors to = shadows(outputs);
    return run({.type = type,
                .tensors = joined(outputs, inputs),
                .outputs = outputs,
                .start =
                    [gloo = gloo_, to = to, from = shadows(inputs), options]() mutable {
                      std::vector<WorkPtr> started;
                      for (std::size_t i = 0; i < to.size(); ++i) {
                        started.push_back(
                            gloo->_reduce_scatter_base(to[i], from[i], options));
                      }
                      return started;
                    },
                .finish = dividing(to, average)});
  }

  WorkPtr run(Collective collective, int device = -1) {
    for (const Tensor& tensor : collective.tensors) {
      if (is_on_device(tensor)) device = tensor.device().index();
    }
    TORCH_CHECK(device >= 0, "simccl's ", collective.name(),
                " needs tensors of a simulated device");
    check_launch(device);
    collective.device = device;
    const OpType type = collective.type;
    collected_.push_back(std::move(collective));
    return coalescing_ ? nullptr : queue(std::exchange(collected_, {}), type);
  }

  WorkPtr queue(std::vector<Collective> collectives, OpType type) {
    const int device = collectives[0].device;
    Tensors tensors, outputs;
    for (const Collective& it : collectives) {
      tensors = joined(tensors, it.tensors);
      outputs = joined(outputs, it.outputs);
    }
    const std::int64_t stream = stream_for(device, collectives);
    StreamQueue& its_queue = stream_queue(device, stream);
    const auto ready = std::make_shared<Event>(/*timing=*/false);
    ready->record(current_queue(device));
    ready->block(its_queue);
    const std::string name = names_of(collectives);
    std::size_t size = 0;
    for (const Tensor& tensor : outputs) size += tensor.nbytes();
    const double mib = static_cast<double>(size) / (1 << 20);
    const auto size_us = static_cast<std::int64_t>(
        mib * static_cast<double>(delays().collective_us_per_mib));
    auto work = c10::make_intrusive<CollectiveWork>(getRank(), type, name, device,
                                                    stream, tensors, outputs);
    its_queue.push([its = std::move(collectives), outcome = work->outcome(), name,
                    device, size_us, group = group_] {
      sleep_us(delays().collective_us + size_us);
      try {
        run_collectives(its);
      } catch (const std::exception& error) {
        const std::string what = error.what();
        const std::string why = what.substr(0, what.find('\n'));
        outcome->fail("collective " + name + " failed: " + why);
        fail_collective(device, group, outcome->message());
      }
    });
    work->finish_queueing();
    return work;
  }

  std::int64_t stream_for(int device, const std::vector<Collective>& collectives) {
    const int peer = collectives.size() == 1 ? collectives[0].peer : -1;
    std::lock_guard lock(mutex_);
    const auto [it, is_new] = streams_.try_emplace({device, peer}, kDefaultStream);
    if (is_new) it->second = new_internal_stream(device);
    return it->second;
  }

  const c10::intrusive_ptr<Backend> gloo_;
  const std::uint64_t group_;
  const c10::intrusive_ptr<Options> options_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, std::int64_t> streams_;
  bool coalescing_ = false;
  std::vector<Collective> collected_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_simccl(c10::intrusive_ptr<c10d::Backend> gloo,
                                              std::chrono::milliseconds timeout) {
  return c10::make_intrusive<Simccl>(std::move(gloo), timeout);
}

}  // namespace sim
