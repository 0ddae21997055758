// The extension module; it has no logic of its own.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator.hpp"
#include "driver/cuda_driver.hpp"
#include "driver/host_driver.hpp"
#include "driver/null_driver.hpp"
#include "driver/shared_memory.hpp"
#include "error.hpp"
#include "replay/expandable_model.hpp"
#include "replay/gmlake_model.hpp"
#include "replay/native_model.hpp"
#include "replay/ours.hpp"
#include "replay/replay.hpp"
#include "torch/hooks.hpp"

namespace py = pybind11;

namespace {

using namespace drivetrain;

// What was thrown as an error of the package, by its name in `_errors`.
void raise(const char* name, const std::exception& thrown) {
  const py::object kind = py::module_::import("drivetrain_memory._errors").attr(name);
  PyErr_SetString(kind.ptr(), thrown.what());
}

void translate(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(std::move(thrown));
  } catch (const py::error_already_set&) {
    throw;
  } catch (const py::builtin_exception&) {
    throw;
  } catch (const OutOfMemory& error) {
    raise("DeviceMemoryError", error);
  } catch (const MisuseError& error) {
    raise("MemoryUseError", error);
  } catch (const std::exception& error) {
    raise("DeviceError", error);
  }
}

constexpr std::pair<const char*, std::uint64_t Counters::*> kCounters[] = {
    {"allocations", &Counters::allocations},
    {"frees", &Counters::frees},
    {"misses", &Counters::misses},
    {"out_of_memory", &Counters::out_of_memory},
    {"created", &Counters::created},
    {"destroyed", &Counters::destroyed},
    {"mapped", &Counters::mapped},
    {"unmapped", &Counters::unmapped},
    {"map_calls", &Counters::map_calls},
    {"remapped", &Counters::remapped},
    {"returned", &Counters::returned},
    {"stolen", &Counters::stolen},
    {"stream_waits", &Counters::stream_waits},
    {"host_waits", &Counters::host_waits},
    {"live_bytes", &Counters::live_bytes},
    {"peak_live_bytes", &Counters::peak_live_bytes},
    {"active_bytes", &Counters::active_bytes},
    {"peak_active_bytes", &Counters::peak_active_bytes},
    {"asleep_bytes", &Counters::asleep_bytes},
    {"reserved_bytes", &Counters::reserved_bytes},
    {"peak_reserved_bytes", &Counters::peak_reserved_bytes},
};

py::typing::Dict<py::str, py::int_> as_dict(const Counters& counters) {
  py::typing::Dict<py::str, py::int_> found;
  for (const auto& [name, field] : kCounters) found[name] = counters.*field;
  return found;
}

// Bytes of another process, as PyTorch takes what is not its own.
struct OpenedStorage {
  SharedMemory memory;
  Bytes size;

  OpenedStorage(CudaDriver& driver, int pid, const Shared& shared, Bytes of_size)
      : memory(driver, pid, shared, of_size), size(of_size) {}
};

py::typing::Dict<py::str, py::object> as_cuda_array(const OpenedStorage& opened) {
  py::typing::Dict<py::str, py::object> found;
  found["shape"] = py::make_tuple(opened.size);
  found["typestr"] = "|u1";
  found["data"] = py::make_tuple(opened.memory.at(), false);
  found["version"] = 3;
  return found;
}

// A block of the address space.
struct BlockInfo {
  std::uint64_t at, size, stream, graph, extent_at, kind;
};

std::vector<BlockInfo> blocks_of(Allocator& allocator) {
  std::vector<BlockInfo> found;
  allocator.each_block([&](const Block& block) {
    const Arena& arena = *block.extent->arena;
    if (arena.is_asleep()) return;
    found.push_back({block.at, block.size, arena.clock().stream(), arena.graph(),
                     block.extent->at, static_cast<std::uint64_t>(block.kind())});
  });
  return found;
}

// The allocators that traces can be played to, by their numbers.
std::unique_ptr<Subject> make_subject(int model, std::unique_ptr<Driver>& driver,
                                      Bytes capacity, Bytes chunk, double headroom) {
  if (model == 0) {
    driver = std::make_unique<NullDriver>(capacity, chunk);
    return std::make_unique<Ours>(*driver, Options{capacity, headroom, 0});
  }
  if (model == 1) return std::make_unique<NativeModel>(capacity);
  if (model == 2) return std::make_unique<ExpandableModel>(capacity, chunk);
  if (model == 3) return std::make_unique<GmlakeModel>(capacity, chunk);
  throw MisuseError("there is no model " + std::to_string(model));
}

struct Replayed {
  Played played;
  std::vector<std::pair<std::int64_t, std::uint64_t>> segment_events;
};

Replayed play(const py::buffer& events, int model, Bytes capacity, Bytes chunk,
              double headroom) {
  const py::buffer_info info = events.request();
  if (info.ndim != 1 || info.itemsize != sizeof(TraceEvent))
    throw MisuseError("a trace is an array of its events");
  const auto* first = static_cast<const TraceEvent*>(info.ptr);
  const py::gil_scoped_release released;
  std::unique_ptr<Driver> driver;
  const auto subject = make_subject(model, driver, capacity, chunk, headroom);
  Replayed found;
  found.played = replay(first, static_cast<std::size_t>(info.size), *subject);
  for (const SegmentEvent& event : subject->segment_events())
    found.segment_events.emplace_back(event.bytes, event.stream);
  return found;
}

template <class Function>
std::uintptr_t address(Function* function) {
  return reinterpret_cast<std::uintptr_t>(function);
}

py::typing::Dict<py::str, py::int_> hooks() {
  py::typing::Dict<py::str, py::int_> found;
  found["record_stream"] = address(&drivetrain_memory_torch_record_stream);
  found["reset"] = address(&drivetrain_memory_torch_reset);
  found["limit"] = address(&drivetrain_memory_torch_limit);
  found["base"] = address(&drivetrain_memory_torch_base);
  found["begin_pool"] = address(&drivetrain_memory_torch_begin_pool);
  found["end_pool"] = address(&drivetrain_memory_torch_end_pool);
  found["release_pool"] = address(&drivetrain_memory_torch_release_pool);
  return found;
}

}  // namespace

PYBIND11_MODULE(_extension, m) {
  m.doc() = "The allocator, its devices, and models of other allocators.";
  py::register_local_exception_translator(&translate);
  // Many wait for a device.
  const py::call_guard<py::gil_scoped_release> without_gil;

  py::class_<Driver>(m, "Driver", "A device; ended with the object.");
  py::class_<NullDriver, Driver>(m, "NullDriver", "Book-keeping alone.")
      .def(py::init<Bytes, Bytes>(), py::arg("total"), py::arg("chunk"));
  py::class_<HostDriver, Driver>(m, "HostDriver", "Memory of this machine.")
      .def(py::init<Bytes, Bytes, std::uint32_t, std::uint64_t>(), py::arg("total"),
           py::arg("chunk"), py::arg("delay_us"), py::arg("seed"));
  py::class_<CudaDriver, Driver>(m, "CudaDriver", "A CUDA device.")
      .def(py::init<int, bool, const std::string&>(), py::arg("device"),
           py::arg("peers"), py::arg("library"))
      .def_static("count", &CudaDriver::count, py::arg("library"),
                  "How many there are, all of which can map memory.");

  py::class_<OpenedStorage>(m, "OpenedStorage", "Bytes of another process.")
      .def(py::init([](CudaDriver& driver, int pid, std::vector<int> chunks,
                       LeaseId lease, Bytes offset, Bytes size) {
             const Shared shared{std::move(chunks), lease, offset};
             return std::make_unique<OpenedStorage>(driver, pid, shared, size);
           }),
           py::arg("driver"), py::arg("pid"), py::arg("chunks"), py::arg("lease"),
           py::arg("offset"), py::arg("size"), py::keep_alive<1, 2>(), without_gil)
      .def_property_readonly("__cuda_array_interface__", &as_cuda_array);
  m.def(
      "take_once",
      [](int pid, LeaseId lease) { const LeaseHold hold(OtherProcess(pid), lease); },
      py::arg("pid"), py::arg("lease"), without_gil,
      "Says that what was sent has come, where the memory is here already.");

  py::class_<Shared>(m, "Shared", "What another process needs to have a block too.")
      .def_readonly("chunks", &Shared::chunks)
      .def_readonly("lease", &Shared::lease)
      .def_readonly("offset", &Shared::offset);

  py::class_<Counters> counters(m, "Counters", "What an allocator has done so far.");
  for (const auto& [name, field] : kCounters) counters.def_readonly(name, field);
  counters.def("as_dict", &as_dict, "Returns the counters by name.");

  py::class_<BlockInfo>(m, "BlockInfo", "A block of the address space.")
      .def_readonly("at", &BlockInfo::at)
      .def_readonly("size", &BlockInfo::size)
      .def_readonly("stream", &BlockInfo::stream)
      .def_readonly("graph", &BlockInfo::graph)
      .def_readonly("extent_at", &BlockInfo::extent_at)
      .def_readonly("kind", &BlockInfo::kind);

  py::class_<HistoryEntry>(m, "HistoryEntry", "What happened once.")
      .def_property_readonly(
          "action",
          [](const HistoryEntry& entry) { return static_cast<int>(entry.action); })
      .def_readonly("graph", &HistoryEntry::graph)
      .def_readonly("at", &HistoryEntry::at)
      .def_readonly("size", &HistoryEntry::size)
      .def_readonly("stream", &HistoryEntry::stream)
      .def_readonly("time_us", &HistoryEntry::time_us);

  py::class_<Allocator>(m, "Allocator", "One device. Safe to use from any thread.")
      .def(py::init([](Driver& driver, Bytes capacity, double headroom, Bytes mapped) {
             return std::make_unique<Allocator>(driver,
                                                Options{capacity, headroom, mapped});
           }),
           py::arg("driver"), py::arg("capacity"), py::arg("headroom"),
           py::arg("mapped"), py::keep_alive<1, 2>())
      .def(
          "allocate",
          [](Allocator& allocator, Bytes size, Stream stream, std::uint64_t graph,
             std::uint64_t tag) {
            return allocator.allocate(size, stream, {graph, tag});
          },
          py::arg("size"), py::arg("stream"), py::arg("graph"), py::arg("tag") = 0,
          without_gil)
      .def("free", &Allocator::free, py::arg("at"), without_gil)
      .def("record_stream", &Allocator::record_stream, py::arg("at"), py::arg("stream"),
           without_gil)
      .def("release_graph", &Allocator::release_graph, py::arg("graph"), without_gil)
      .def("sleep", &Allocator::sleep, py::arg("tag"), py::arg("keeps"), without_gil)
      .def("wake", &Allocator::wake, py::arg("tag"), without_gil)
      .def("is_asleep", &Allocator::is_asleep, py::arg("tag"), without_gil)
      .def("share", &Allocator::share, py::arg("at"), without_gil)
      .def("trim", &Allocator::trim, without_gil)
      .def("limit", &Allocator::limit, py::arg("capacity"), without_gil)
      .def("counters", &Allocator::counters, without_gil)
      .def("reset_peaks", &Allocator::reset_peaks, without_gil)
      .def("blocks", &blocks_of, without_gil)
      .def("keep_history", &Allocator::keep_history, py::arg("most"), without_gil)
      .def("history", &Allocator::history, without_gil);

  py::class_<Replayed>(m, "Replayed", "How an allocator fared with a trace.")
      .def_property_readonly("served",
                             [](const Replayed& found) { return found.played.served; })
      .def_property_readonly(
          "peak_live_bytes",
          [](const Replayed& found) { return found.played.peak_live_bytes; })
      .def_property_readonly(
          "peak_reserved_bytes",
          [](const Replayed& found) { return found.played.effort.peak_reserved_bytes; })
      .def_property_readonly(
          "remapped_bytes",
          [](const Replayed& found) { return found.played.effort.remapped_bytes; })
      .def_property_readonly(
          "driver_calls",
          [](const Replayed& found) { return found.played.effort.driver_calls; })
      .def_property_readonly(
          "flushes", [](const Replayed& found) { return found.played.effort.flushes; })
      .def_property_readonly(
          "stream_waits",
          [](const Replayed& found) { return found.played.effort.stream_waits; })
      .def_property_readonly(
          "calls_by_step",
          [](const Replayed& found) { return found.played.calls_by_step; })
      .def_readonly("segment_events", &Replayed::segment_events);
  m.def("replay", &play, py::arg("events"), py::arg("model"), py::arg("capacity"),
        py::arg("chunk"), py::arg("headroom"),
        "Plays a trace to an allocator of its own: 0 for this project's, 1 for "
        "PyTorch's, 2 for its expandable segments, 3 for GMLake's.");

  m.def("hooks", &hooks, "Returns the addresses of what PyTorch calls, by name.");
  m.def("configure", &drivetrain_memory_configure, py::arg("capacity"),
        py::arg("headroom"), py::arg("peers"), py::arg("library"),
        "Says how the hooks make their allocators.");
  m.def("tag", &drivetrain_memory_tag, py::arg("name"), py::arg("may_be_new"),
        "The number of a tag by its name.");
  m.def("set_tag", &drivetrain_memory_set_tag, py::arg("tag"));
  m.def("keep_history", &drivetrain_memory_keep_history, py::arg("most"),
        "Every allocator that the hooks use, or will, keeps so many entries.");
  m.def("of_device", &drivetrain_memory_of_device, py::arg("device"),
        py::return_value_policy::reference,
        "Returns the allocator that the hooks use for a device; None before they did.");
}
