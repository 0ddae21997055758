// ncclTuner_v4_t of NCCL's tuner_v4.h: looked up by NCCL 2.24 and later.

#include "tuner.hpp"

namespace {

using drivetrain::nccl::Log;
using drivetrain::nccl::Result;

struct TunerV4 {
  const char* name;
  Result (*init)(std::size_t ranks, std::size_t nodes, Log log, void** context);
  Result (*get_coll_info)(void* context, int collective, std::size_t bytes,
                          int num_pipe_ops, float** costs, int num_algorithms,
                          int num_protocols, int reg_buff, int* channels);
  Result (*destroy)(void* context);
};

Result init(std::size_t ranks, std::size_t nodes, Log log, void** context) {
  *context = drivetrain::nccl::start(ranks, nodes, log);
  return Result::success;
}

}  // namespace

extern "C" DRIVETRAIN_EXPORT const TunerV4 ncclTunerPlugin_v4 = {
    drivetrain::nccl::tuner_name, init, drivetrain::nccl::choose,
    drivetrain::nccl::finish};
