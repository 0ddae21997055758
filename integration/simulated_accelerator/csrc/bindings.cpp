#include <ATen/core/Generator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "counters.hpp"
#include "generator.hpp"
#include "graph.hpp"
#include "health.hpp"
#include "op_facts.hpp"
#include "pinned.hpp"
#include "registration.hpp"
#include "settings.hpp"
#include "simccl.hpp"
#include "streams.hpp"

namespace sim {
namespace {

namespace py = pybind11;

void configure_from(int devices, std::size_t memory_bytes, bool bf16, bool streams,
                    bool event_timing, bool pinned_memory, bool graphs, bool readable,
                    bool poison) {
  configure({.devices = devices,
             .memory_bytes = memory_bytes,
             .bf16 = bf16,
             .streams = streams,
             .event_timing = event_timing,
             .pinned_memory = pinned_memory,
             .graphs = graphs,
             .readable = readable,
             .poison = poison});
}

void set_delays(std::int64_t op_us, std::int64_t copy_us, std::int64_t collective_us,
                std::int64_t collective_us_per_mib) {
  delays().op_us = op_us;
  delays().copy_us = copy_us;
  delays().collective_us = collective_us;
  delays().collective_us_per_mib = collective_us_per_mib;
}

py::tuple get_delays() {
  return py::make_tuple(delays().op_us.load(), delays().copy_us.load(),
                        delays().collective_us.load(),
                        delays().collective_us_per_mib.load());
}

std::map<std::string, std::int64_t> get_counters() {
  const Counters& now = counters();
  return {{"launches", now.launches},
          {"synchronizations", now.synchronizations},
          {"asynchronous_ops", now.asynchronous_ops},
          {"synchronous_ops", now.synchronous_ops},
          {"shape_cache_hits", now.shape_cache_hits},
          {"shape_cache_misses", now.shape_cache_misses}};
}

void set_device(int device) {
  check_index(device);
  exchange_device(device);
}

// torch.Event.elapsed_time refuses events of a derived class.
double elapsed_ms(std::intptr_t begin, std::intptr_t end) {
  return c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1)
      ->elapsedTime(reinterpret_cast<void*>(begin), reinterpret_cast<void*>(end), -1);
}

void bind_device(py::module& m) {
  m.def("configure", &configure_from);
  m.def("register_hooks", &register_hooks);
  m.def("register_ops_with_composites", &register_ops_with_composites);
  m.def("register_autocast", &register_autocast);
  m.def("device_count", &device_count);
  m.def("current_device", &current_device);
  m.def("set_device", torch::wrap_pybind_function(&set_device));
  m.def("exchange_device", &exchange_device);
  m.def("check_index", torch::wrap_pybind_function(&check_index));
  m.def("synchronize", torch::wrap_pybind_function(&synchronize_device));
  m.def("is_initialized", py::overload_cast<>(&is_initialized));
  m.def("initialize", torch::wrap_pybind_function(&initialize));
  m.def("is_in_bad_fork", &is_in_bad_fork);
  m.def("quiesce", &quiesce_all);
  m.def("default_generator", torch::wrap_pybind_function(&default_generator));
  m.def("elapsed_ms", torch::wrap_pybind_function(&elapsed_ms));
  m.def("is_capturing",
        [](int device) { return is_capturing(device, current_stream(device)); });
}

void bind_control(py::module& m) {
  m.def("set_delays", &set_delays);
  m.def("get_delays", &get_delays);
  m.def("lose", &lose);
  m.def("restore", &restore);
  m.def("is_lost", &is_lost);
  m.def("counters", &get_counters);
  m.def("op_counts", &op_counts);
  m.def("ops_with_composites", &ops_with_composites);
  m.def("autocast_ops", &autocast_ops);
  m.def("set_pinned_reuse_waits", &set_pinned_reuse_waits);
  m.def("register_pinned", [](std::uintptr_t address, std::size_t size) {
    return register_pinned(reinterpret_cast<void*>(address), size);
  });
  m.def("unregister_pinned", [](std::uintptr_t address) {
    return unregister_pinned(reinterpret_cast<void*>(address));
  });
  m.def("launch_empty", torch::wrap_pybind_function(
                            [](int device) { current_queue(device).push([] {}); }));
}

void bind_graph(py::module& m) {
  using torch::wrap_pybind_function;
  py::class_<CapturedGraph>(m, "CapturedGraph")
      .def(py::init([] { return std::make_unique<CapturedGraph>(); }))
      .def("capture_begin", wrap_pybind_function(&CapturedGraph::capture_begin))
      .def("capture_end", wrap_pybind_function(&CapturedGraph::capture_end))
      .def("replay", wrap_pybind_function(&CapturedGraph::replay))
      .def("reset", wrap_pybind_function(&CapturedGraph::reset))
      .def("pool", &CapturedGraph::pool);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  bind_device(m);
  bind_control(m);
  bind_graph(m);
  m.def("make_simccl", &make_simccl);
}

}  // namespace sim
