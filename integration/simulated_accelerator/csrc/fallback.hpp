#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace sim {

// Runs any op that has a CPU kernel: on the stream's thread, on the bytes of the
// device.
//
// The first call with new shapes waits for the stream and runs at once; what it returns
// tells the shapes of the results, which later calls allocate before they are queued.
void run_op(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace sim
