// ncclTuner_v5_t of NCCL's tuner_v5.h: looked up by NCCL 2.28 and later.

#include "tuner.hpp"

namespace {

using drivetrain::nccl::Log;
using drivetrain::nccl::Result;

struct TunerV5 {
  const char* name;
  // What NCCL says of NVLink domains, and the constants of its model, stay as they are.
  Result (*init)(void** context, std::uint64_t communicator, std::size_t ranks,
                 std::size_t nodes, Log log, void* domains, void* constants);
  Result (*get_coll_info)(void* context, int collective, std::size_t bytes,
                          int num_pipe_ops, float** costs, int num_algorithms,
                          int num_protocols, int reg_buff, int* channels);
  Result (*finalize)(void* context);
};

Result init(void** context, std::uint64_t, std::size_t ranks, std::size_t nodes,
            Log log, void*, void*) {
  *context = drivetrain::nccl::start(ranks, nodes, log);
  return Result::success;
}

}  // namespace

extern "C" DRIVETRAIN_EXPORT const TunerV5 ncclTunerPlugin_v5 = {
    drivetrain::nccl::tuner_name, init, drivetrain::nccl::choose,
    drivetrain::nccl::finish};
