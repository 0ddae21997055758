// Whole steps over a pointer table, in parallel.
//
// Threads are OpenMP's, and its functions are left for the process to provide: torch
// has loaded a runtime already, and a second pool of threads would fight with it.
//
// Every function is safe to call from several threads on disjoint tables. Rows whose
// weights share memory are stepped one after the other. Sums are added in the order of
// the table, so that results do not depend on the number of threads. What may be thrown
// is std::bad_alloc.
#pragma once

#include <cstdint>

#include "row.hpp"

namespace drivetrain {

// The instruction set that the steps use on this processor.
const char* instruction_set();

void agd(const Row* rows, std::int64_t num_rows, const AgdScalars& s, int num_threads);

// Both passes of LAMB, for rows that are whole on this process, and the squared norms
// of each row's weight and step.
//
// Most rows are stepped whole by one thread, which needs no other, and whose cache
// holds the end of the first pass when the second one begins there. Only rows that are
// large beside a thread's share are split.
void lamb(const Row* rows, std::int64_t num_rows, const LambScalars& s, int num_threads,
          double (*squares)[2]);

// The first pass of LAMB: moments, and the squared norms of each row's weight and step.
void lamb_moments(const Row* rows, std::int64_t num_rows, const LambScalars& s,
                  int num_threads, double (*squares)[2]);

// The second pass of LAMB, with the squared norms of whole tensors.
void lamb_apply(const Row* rows, std::int64_t num_rows, const LambScalars& s,
                int num_threads, const double (*squares)[2]);

// The squared norm of each row's gradient, as it is stored.
void grad_squares(const Row* rows, std::int64_t num_rows, int num_threads,
                  double* squares);

}  // namespace drivetrain
