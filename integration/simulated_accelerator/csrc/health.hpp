#pragma once

#include <cstdint>
#include <string>

namespace sim {

// Health of a device: the errors that its streams have met and its calls raise later.
//
// An error of an op and the loss of a device are sticky: queued work is dropped, and
// every call raises until the device is restored. A collective's error belongs to its
// process group: calls that wait raise it until that group is aborted or destroyed.

// The error codes of torch.AcceleratorError.
inline constexpr int kOpFailed = 1;
inline constexpr int kDeviceLost = 2;

void fail_op(int device, const std::string& message);
void fail_collective(int device, std::uint64_t group, const std::string& message);
void forget_group(std::uint64_t group);

void lose(int device);
void restore(int device);

// Whether queued work is dropped.
bool is_broken(int device);
bool is_lost(int device);

// Raise what a call that starts work, or one that waits, has to.
void check_launch(int device);
void check_wait(int device);

}  // namespace sim
