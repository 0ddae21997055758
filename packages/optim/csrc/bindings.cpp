// The extension module; it has no logic of its own.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "steps.hpp"

namespace py = pybind11;

namespace {

using namespace drivetrain;

using Table = py::array_t<std::int64_t, py::array::c_style>;
using Numbers = py::array_t<double, py::array::c_style>;
using Pairs = double (*)[2];

constexpr auto kColumns = static_cast<py::ssize_t>(sizeof(Row) / sizeof(std::int64_t));

const Row* rows_of(const Table& table) {
  if (table.ndim() != 2 || table.shape(1) != kColumns)
    throw std::invalid_argument("a table has " + std::to_string(kColumns) + " columns");
  return reinterpret_cast<const Row*>(table.data());
}

// The numbers of a step, in the order of the fields of its structure.
template <class Scalars>
Scalars scalars_of(const std::vector<double>& numbers) {
  Scalars found;
  if (numbers.size() * sizeof(double) != sizeof found)
    throw std::invalid_argument("a step needs " +
                                std::to_string(sizeof found / sizeof(double)) +
                                " numbers, got " + std::to_string(numbers.size()));
  std::memcpy(&found, numbers.data(), sizeof found);
  return found;
}

template <class Work>
void without_gil(const Work& work) {
  const py::gil_scoped_release released;
  work();
}

void step_agd(const Table& table, const std::vector<double>& scalars, int num_threads) {
  const Row* rows = rows_of(table);
  const auto s = scalars_of<AgdScalars>(scalars);
  without_gil([&] { agd(rows, table.shape(0), s, num_threads); });
}

template <auto Step>
Numbers step_lamb(const Table& table, const std::vector<double>& scalars,
                  int num_threads) {
  const Row* rows = rows_of(table);
  const auto s = scalars_of<LambScalars>(scalars);
  Numbers squares({table.shape(0), py::ssize_t{2}});
  const auto pairs = reinterpret_cast<Pairs>(squares.mutable_data());
  without_gil([&] { Step(rows, table.shape(0), s, num_threads, pairs); });
  return squares;
}

void apply_lamb(
    const Table& table, const std::vector<double>& scalars, int num_threads,
    const py::array_t<double, py::array::c_style | py::array::forcecast>& squares) {
  const Row* rows = rows_of(table);
  const auto s = scalars_of<LambScalars>(scalars);
  if (squares.ndim() != 2 || squares.shape(0) != table.shape(0) ||
      squares.shape(1) != 2)
    throw std::invalid_argument("two squared norms are needed for each row");
  const auto pairs = reinterpret_cast<const double (*)[2]>(squares.data());
  without_gil([&] { lamb_apply(rows, table.shape(0), s, num_threads, pairs); });
}

Numbers square_grads(const Table& table, int num_threads) {
  const Row* rows = rows_of(table);
  Numbers squares(table.shape(0));
  double* data = squares.mutable_data();
  without_gil([&] { grad_squares(rows, table.shape(0), num_threads, data); });
  return squares;
}

}  // namespace

PYBIND11_MODULE(_extension, m) {
  m.doc() = "Fused steps on a CPU, over tables of addresses.";
  const auto table = py::arg("table").noconvert();
  m.def("instruction_set", instruction_set,
        "Returns the instruction set that the steps use on this CPU.");
  m.def("agd", step_agd, table, py::arg("scalars"), py::arg("num_threads"),
        "Performs one step of AGD on the rows of a table.");
  m.def("lamb", step_lamb<lamb>, table, py::arg("scalars"), py::arg("num_threads"),
        "Performs one step of LAMB; returns the squared norms of weights and steps.");
  m.def("lamb_moments", step_lamb<lamb_moments>, table, py::arg("scalars"),
        py::arg("num_threads"),
        "Updates LAMB's moments; returns the squared norms of weights and steps.");
  m.def("lamb_apply", apply_lamb, table, py::arg("scalars"), py::arg("num_threads"),
        py::arg("squares"),
        "Updates the weights by LAMB, with squared norms of whole parameters.");
  m.def("grad_squares", square_grads, table, py::arg("num_threads"),
        "Returns the squared norm of each row's gradient.");
}
