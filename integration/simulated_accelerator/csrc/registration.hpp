#pragma once

#include <string>
#include <vector>

namespace sim {

// What is registered with torch when the device is loaded, after its settings are
// known. The allocator, the guard and the kernels register themselves when the library
// is.
void register_hooks();

// Gives the fallback every op that has a CPU kernel beside a composite one: the
// composite one would be taken instead, and its results differ in the last bits.
void register_ops_with_composites();
std::vector<std::string> ops_with_composites();

// Casts as autocast on CPU does, for the ops that it knows.
void register_autocast();
std::vector<std::string> autocast_ops();

}  // namespace sim
