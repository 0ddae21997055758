// The extension module; it has no logic of its own.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "copy.hpp"
#include "crc32c.hpp"
#include "direct_file.hpp"
#include "populate.hpp"

namespace py = pybind11;

namespace {

using namespace drivetrain;

// Some bytes that Python keeps until this has gone.
class Bytes {
 public:
  explicit Bytes(const py::buffer& memory, bool is_written = false)
      : info_(memory.request(is_written)) {
    py::ssize_t expected = info_.itemsize;
    for (py::ssize_t axis = info_.ndim - 1; axis >= 0; --axis) {
      const auto at = static_cast<std::size_t>(axis);
      if (info_.shape[at] > 1 && info_.strides[at] != expected)
        throw py::buffer_error("the bytes do not lie side by side");
      expected *= info_.shape[at];
    }
  }

  void* data() const { return info_.ptr; }
  std::uint64_t size() const {
    return static_cast<std::uint64_t>(info_.size * info_.itemsize);
  }

 private:
  py::buffer_info info_;
};

template <class Work>
auto without_gil(const Work& work) {
  const py::gil_scoped_release released;
  return work();
}

[[noreturn]] void raise_os_error(int error, const std::string& text) {
  PyErr_SetObject(PyExc_OSError, py::make_tuple(error, text).ptr());
  throw py::error_already_set();
}

std::vector<std::uint32_t> room_for(std::uint64_t size, std::uint64_t block) {
  return std::vector<std::uint32_t>((size + block - 1) / block);
}

std::vector<std::uint64_t> numbers_of(const py::buffer& column) {
  const Bytes bytes(column);
  std::vector<std::uint64_t> found(bytes.size() / sizeof(std::uint64_t));
  std::memcpy(found.data(), bytes.data(), found.size() * sizeof(std::uint64_t));
  return found;
}

void copy(const py::buffer& sources, const py::buffer& targets, const py::buffer& sizes,
          int num_threads) {
  const auto from = numbers_of(sources), to = numbers_of(targets),
             size = numbers_of(sizes);
  if (from.size() != size.size() || to.size() != size.size())
    throw std::invalid_argument("each block has a source, a target and a size");
  std::vector<Block> blocks;
  blocks.reserve(size.size());
  for (std::size_t i = 0; i < size.size(); ++i)
    blocks.push_back({reinterpret_cast<const void*>(from[i]),
                      reinterpret_cast<void*>(to[i]), size[i]});
  without_gil([&] { copy_blocks(blocks.data(), blocks.size(), num_threads); });
}

void populate_memory(const py::buffer& memory) {
  const Bytes bytes(memory, true);
  const int error = without_gil([&] { return populate(bytes.data(), bytes.size()); });
  if (error != 0) raise_os_error(error, std::strerror(error));
}

std::vector<std::uint32_t> checksums(const py::buffer& memory, std::uint64_t block,
                                     int num_threads) {
  const Bytes bytes(memory);
  auto found = room_for(bytes.size(), block);
  without_gil([&] {
    checksum_blocks(bytes.data(), bytes.size(), block, num_threads, found.data());
  });
  return found;
}

std::pair<std::vector<std::uint32_t>, bool> write_memory(int fd,
                                                         const py::buffer& memory,
                                                         std::uint64_t block,
                                                         int num_threads,
                                                         Progress& progress) {
  const Bytes bytes(memory);
  auto found = room_for(bytes.size(), block);
  const WriteResult result = without_gil([&] {
    return write_file(fd, bytes.data(), bytes.size(), block, num_threads, found.data(),
                      &progress);
  });
  if (result.error != 0)
    raise_os_error(result.error, std::strerror(result.error) +
                                     std::string(" at byte ") +
                                     std::to_string(result.at));
  return {std::move(found), result.was_direct != 0};
}

void read_memory(int fd, const py::buffer& memory, std::uint64_t at, int num_threads) {
  const Bytes bytes(memory, true);
  const int error = without_gil(
      [&] { return read_file(fd, bytes.data(), bytes.size(), at, num_threads); });
  if (error != 0) raise_os_error(error, std::strerror(error));
}

}  // namespace

PYBIND11_MODULE(_extension, m) {
  m.doc() = "Copies, checksums and direct writes.";

  py::class_<Progress>(m, "Progress",
                       "How far a write is; any thread may look at it, and stop it.")
      .def(py::init<std::uint64_t, std::uint64_t>(), py::arg("done") = 0,
           py::arg("stop") = 0)
      .def_readwrite("done", &Progress::done, "The bytes that were written.")
      .def_readwrite("stop", &Progress::stop,
                     "Set it to 1, and the write ends with ECANCELED before its next "
                     "block.");

  m.def("copy", copy, py::arg("sources"), py::arg("targets"), py::arg("sizes"),
        py::arg("num_threads"),
        "Copies memory between addresses, of type code `Q`; blocks must not overlap.");
  m.def("populate", populate_memory, py::arg("memory"),
        "Makes the pages of a mapping present.");
  m.def(
      "crc32c",
      [](const py::buffer& data) {
        const Bytes bytes(data);
        return crc32c(0, bytes.data(), bytes.size());
      },
      py::arg("data"), "Returns the CRC-32C of some bytes.");
  m.def("checksums", checksums, py::arg("memory"), py::arg("block_bytes"),
        py::arg("num_threads"), "Returns the CRC-32C of each block of some memory.");
  m.def("write_file", write_memory, py::arg("fd"), py::arg("memory"),
        py::arg("block_bytes"), py::arg("num_threads"), py::arg("progress"),
        "Writes memory to the beginning of an empty file; returns the CRC-32C of each "
        "block, and whether the page cache was passed by.");
  m.def("read_file", read_memory, py::arg("fd"), py::arg("memory"), py::arg("at"),
        py::arg("num_threads"), "Fills memory from part of a file.");
}
