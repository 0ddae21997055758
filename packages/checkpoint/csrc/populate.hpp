// Makes the pages of a mapping present, so that the first copy into it meets no fault.
#pragma once

#include <cstdint>

namespace drivetrain {

// Returns errno, or 0. An old kernel has no MADV_POPULATE_WRITE; then each page is
// touched.
int populate(void* data, std::uint64_t size);

}  // namespace drivetrain
