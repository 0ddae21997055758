// The extension module; it has no logic of its own.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine.hpp"

namespace py = pybind11;

namespace {

using namespace drivetrain;

// Signals are handled between two waits.
constexpr std::chrono::milliseconds kTurn(500);

// What peers have said is text that may be damaged.
py::object text(const std::string& said) {
  return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      said.data(), static_cast<py::ssize_t>(said.size()), "replace"));
}

void raise_distributed_error(const std::string& what) {
  const py::object kind =
      py::module_::import("drivetrain_core").attr("DistributedError");
  PyErr_SetObject(kind.ptr(), text(what).ptr());
}

// Infinity is no number of nanoseconds, nor are some thousand years.
std::chrono::nanoseconds nanoseconds(double seconds) {
  const std::chrono::duration<double> most(1e9);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::min(std::chrono::duration<double>(seconds), most));
}

struct ProgramHandle {
  std::shared_ptr<const Program> program;
};

ProgramHandle make_program(const std::vector<std::array<std::int32_t, 3>>& steps,
                           std::int32_t num_chunks, std::int32_t num_ranks) {
  std::vector<Step> made;
  made.reserve(steps.size());
  for (const auto& [kind, peer, chunk] : steps)
    made.push_back({static_cast<Kind>(kind), peer, chunk});
  return {std::make_shared<const Program>(std::move(made), num_chunks, num_ranks)};
}

// Why it failed, empty if it did not; None if it has not ended.
py::typing::Optional<py::str> wait(Ticket& ticket, double timeout_s) {
  bool is_done = false;
  {
    const py::gil_scoped_release released;
    is_done = ticket.wait_for(nanoseconds(timeout_s));
  }
  if (!is_done) return py::none();
  return text(ticket.error());
}

void finish(Ticket& ticket) {
  for (bool is_done = false; !is_done;) {
    {
      const py::gil_scoped_release released;
      is_done = ticket.wait_for(kTurn);
    }
    if (!is_done && PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  if (const std::string error = ticket.error(); !error.empty())
    throw std::runtime_error(error);
}

// An engine lives in the process that has started it: in the child of a fork its thread
// is not there, and whoever waits for it waits for ever.
class EngineHandle {
 public:
  EngineHandle(const std::string& host, const std::string& local_name)
      : engine_(std::make_unique<Engine>(host, local_name)) {}
  EngineHandle(const EngineHandle&) = delete;
  EngineHandle& operator=(const EngineHandle&) = delete;
  ~EngineHandle() {
    if (getpid() != process_) static_cast<void>(engine_.release());
  }

  Engine& get() {
    if (!engine_) throw std::runtime_error("the engine has ended");
    return *engine_;
  }
  void stop() { engine_.reset(); }

 private:
  const pid_t process_ = getpid();
  std::unique_ptr<Engine> engine_;
};

std::uint64_t add_group(EngineHandle& engine, const py::bytes& token, std::int32_t rank,
                        std::int32_t num_ranks, int buffer_bytes) {
  Token copy;
  const std::string_view bytes(token);
  if (bytes.size() != copy.size())
    throw std::invalid_argument("a token has " + std::to_string(copy.size()) +
                                " bytes");
  std::memcpy(copy.data(), bytes.data(), copy.size());
  return engine.get().add_group(copy, rank, num_ranks, buffer_bytes);
}

std::shared_ptr<Ticket> submit(
    EngineHandle& engine, std::uint64_t group, const ProgramHandle& program,
    std::uint32_t plan,
    const std::vector<std::pair<std::uintptr_t, std::uint64_t>>& pieces,
    std::int32_t type, std::int32_t operation, double factor,
    std::uint32_t num_channels, std::uint64_t segment_bytes, double timeout_s) {
  std::vector<Piece> made;
  made.reserve(pieces.size());
  for (const auto& [address, size] : pieces)
    made.push_back({reinterpret_cast<char*>(address), size});
  auto ticket = std::make_shared<Ticket>();
  engine.get().submit(
      group,
      Request{program.program, plan, Pieces(std::move(made)), static_cast<Type>(type),
              static_cast<Operation>(operation), factor, num_channels, segment_bytes,
              std::chrono::steady_clock::now() + nanoseconds(timeout_s), ticket});
  return ticket;
}

}  // namespace

PYBIND11_MODULE(_extension, m) {
  m.doc() = "The engine: one thread that moves and reduces.";
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (const py::error_already_set&) {
      throw;
    } catch (const py::builtin_exception&) {
      throw;
    } catch (const std::exception& error) {
      raise_distributed_error(error.what());
    }
  });

  py::class_<ProgramHandle>(m, "Program", "Steps of one rank, ready for the engine.")
      .def(
          py::init(&make_program), py::arg("steps"), py::arg("num_chunks"),
          py::arg("num_ranks"),
          "Takes kind, peer and chunk of each step. Raises DistributedError for a rank "
          "or a chunk that there is not.");

  py::class_<Ticket, std::shared_ptr<Ticket>>(
      m, "Ticket", "A collective that was handed over. Safe to use from any thread.")
      .def(
          "wait", &wait, py::arg("timeout_s"),
          "Returns why it failed, an empty string if it did not, or None if it has not "
          "ended.")
      .def("finish", &finish,
           "Waits for the end, and lets signals through meanwhile. Raises "
           "DistributedError where it failed on some rank.")
      .def("ended_at_s", &Ticket::ended_at_s,
           "When it ended, on the clock of `time.monotonic`.");

  const py::call_guard<py::gil_scoped_release> without_gil;
  py::class_<EngineHandle>(m, "Engine",
                           "Listens, moves and reduces, until it is stopped.")
      .def(py::init<const std::string&, const std::string&>(), py::arg("host"),
           py::arg("local_name"))
      .def_property_readonly("port",
                             [](EngineHandle& engine) { return engine.get().port(); })
      .def("add_group", &add_group, py::arg("token"), py::arg("rank"),
           py::arg("num_ranks"), py::arg("buffer_bytes"))
      .def(
          "set_address",
          [](EngineHandle& engine, std::uint64_t group, std::int32_t peer,
             const std::string& host, std::uint16_t port,
             const std::string& local_name) {
            engine.get().set_address(group, peer, {host, port, local_name});
          },
          py::arg("group"), py::arg("peer"), py::arg("host"), py::arg("port"),
          py::arg("local_name"))
      .def("submit", &submit, py::arg("group"), py::arg("program"), py::arg("plan"),
           py::arg("pieces"), py::arg("type"), py::arg("operation"), py::arg("factor"),
           py::arg("num_channels"), py::arg("segment_bytes"), py::arg("timeout_s"),
           "Hands a collective over: address and size of each piece of its vector, "
           "which "
           "must live until the ticket's end.")
      .def(
          "fail_group",
          [](EngineHandle& engine, std::uint64_t group, const std::string& why) {
            engine.get().fail_group(group, why);
          },
          py::arg("group"), py::arg("why"), without_gil)
      .def(
          "remove_group",
          [](EngineHandle& engine, std::uint64_t group) {
            engine.get().remove_group(group);
          },
          py::arg("group"), without_gil)
      .def("stop", &EngineHandle::stop, without_gil);
}
