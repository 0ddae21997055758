"""What the devices of a machine can do: CPU, CUDA as it tells, others by their modules."""

from __future__ import annotations

import ctypes

import pytest
import torch

from drivetrain_core import DeviceError, PluginError
from drivetrain_core._plugins import ACCELERATORS
from drivetrain_core._probe import probe_device
from drivetrain_core.accelerators import TorchAccelerator, accelerator_of
from drivetrain_core.native_library import load_extension


def test_cpu_is_a_device_like_others():
    cpu = accelerator_of(torch.device("cpu"))
    assert cpu is accelerator_of("cpu")
    facts = cpu.facts()
    assert (facts.type, facts.collectives, facts.compiler) == (
        "cpu",
        "gloo",
        "inductor",
    )
    assert not any((facts.streams, facts.graphs, facts.pinned_memory, facts.triton))
    assert facts.capability == (0, 0)
    assert cpu.version() == torch.backends.cpu.get_cpu_capability()
    assert "registers no memory for cpu" in cpu.register_host_memory(0, 1)


def test_gpu_is_told_by_its_driver(pretend_gpus, monkeypatch):
    pretend_gpus(
        "NVIDIA H100", count=2, total_memory=80 << 30, shared_memory_per_block_optin=7
    )
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    facts = accelerator_of("cuda").facts(1)
    assert facts.name == "NVIDIA H100"
    assert (facts.memory_bytes, facts.capability) == (80 << 30, (9, 0))
    assert (facts.num_processors, facts.shared_memory_bytes) == (132, 7)
    assert facts.streams
    assert facts.event_timing
    assert facts.graphs
    assert facts.collectives == "nccl"
    assert facts.compiler_needs == ("" if facts.triton else "triton")
    assert accelerator_of("cuda").version().startswith("CUDA")
    with pytest.raises(DeviceError, match="no device cuda:2: torch finds 2"):
        accelerator_of("cuda").facts(2)


def test_gpu_that_torch_does_not_find_has_no_facts():
    with pytest.raises(DeviceError, match="torch finds 0"):
        accelerator_of("xpu").facts()


class Cudart:
    """Registers what it is asked to, or refuses with a code."""

    def __init__(self, code=0):
        self.code, self.registered, self.errors = code, [], []

    def cudaHostRegister(self, address, size, flags):  # noqa: N802
        if self.code:
            self.errors.append(self.code)
        else:
            self.registered.append(address)
        return self.code

    def cudaHostUnregister(self, address):  # noqa: N802
        if address not in self.registered:
            self.errors.append(713)
            return 713
        self.registered.remove(address)
        return 0

    def cudaGetLastError(self):  # noqa: N802
        return self.errors.pop() if self.errors else 0


@pytest.mark.parametrize("code", [0, 712])
def test_memory_that_cuda_refuses_leaves_no_error_behind(monkeypatch, code):
    cudart, cuda = Cudart(code), accelerator_of("cuda")
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: cudart)
    refused = cuda.register_host_memory(4096, 100)
    assert refused == (f"CUDA does not register it: error {code}" if code else "")
    assert cudart.registered == ([] if code else [4096])
    cuda.unregister_host_memory(4096)
    cuda.unregister_host_memory(4096)
    assert cudart.registered == cudart.errors == []


class Module:
    """The module of a device that has little: no stream, no properties, own names."""

    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    mem_get_info = staticmethod(lambda index: (3, 8))
    is_bf16_supported = staticmethod(lambda: False)


@pytest.fixture
def poor(monkeypatch):
    """An accelerator of a type of torch's, whose module is a poor one."""
    monkeypatch.setattr(torch, "get_device_module", lambda device: Module)
    return TorchAccelerator("mps")


def test_device_is_known_by_what_its_module_has(poor):
    facts = poor.facts()
    assert (facts.name, facts.memory_bytes) == ("mps", 8)
    assert not any((facts.streams, facts.event_timing, facts.graphs))
    assert facts.dtypes == ("float16", "float32", "float64")
    assert poor.memory() == (3, 8)
    # What is not known is None, and never 0.
    assert poor.peak_memory() is None
    poor.reset_peak_memory()
    assert not poor.is_capturing()


def test_error_of_a_device_is_not_taken_for_what_is_not_known(poor, monkeypatch):
    def lost(index):
        raise torch.AcceleratorError("the device is lost")

    monkeypatch.setattr(Module, "mem_get_info", staticmethod(lost))
    with pytest.raises(torch.AcceleratorError, match="lost"):
        poor.memory()


PLUGIN = """
from drivetrain_core.accelerators import TorchAccelerator
class Own(TorchAccelerator):
    def __init__(self, type="xpu"):
        super().__init__(type)
    def version(self):
        return "own 3"
def other():
    return Own("mps")
"""


def test_package_brings_a_device_by_an_entry_point(distribute):
    distribute(
        "vendor", [("xpu", "vendor_xpu:Own")], module="vendor_xpu", code=PLUGIN,
        group=ACCELERATORS,
    )  # fmt: skip
    assert accelerator_of("xpu").version() == "own 3"
    assert accelerator_of("cpu").version() != "own 3"


def test_package_that_brings_another_device_is_named(distribute):
    distribute(
        "vendor", [("xpu", "vendor_other:other")], module="vendor_other", code=PLUGIN,
        group=ACCELERATORS,
    )  # fmt: skip
    with pytest.raises(PluginError, match=r"vendor.*an Accelerator of the type 'xpu'"):
        accelerator_of("xpu")


def test_package_whose_device_cannot_be_made_is_named(distribute):
    distribute(
        "vendor", [("xpu", "vendor_fails:fails")], module="vendor_fails",
        code="def fails():\n    raise OSError('driver too old')", group=ACCELERATORS,
    )  # fmt: skip
    with pytest.raises(PluginError, match=r"vendor .*made OSError\(.driver too old"):
        accelerator_of("xpu")


def test_unknown_type_is_torchs_error():
    with pytest.raises(RuntimeError, match="Expected one of cpu"):
        accelerator_of("warp")


def test_vendors_words_for_no_memory_are_understood():
    xpu = TorchAccelerator("xpu")
    assert xpu.is_out_of_memory(RuntimeError("NPU out of memory. Tried to allocate"))
    assert not xpu.is_out_of_memory(MemoryError())
    assert accelerator_of("cpu").is_out_of_memory(MemoryError())


@pytest.mark.parametrize("facts", ["{}", "{}['name']"])
def test_package_that_tells_no_facts_is_named(distribute, facts):
    code = (
        "from drivetrain_core.accelerators import TorchAccelerator\n"
        "class Own(TorchAccelerator):\n"
        "    def __init__(self): super().__init__('xpu')\n"
        f"    def facts(self, index=0): return {facts}\n"
    )
    module = f"vendor_tells_{len(facts)}"
    distribute(
        "vendor", [("xpu", f"{module}:Own")], module=module, code=code,
        group=ACCELERATORS,
    )  # fmt: skip
    with pytest.raises(PluginError, match=rf"{module}.*tells no facts of xpu:0"):
        probe_device(torch.device("xpu", 0))


def test_extension_that_does_not_load_says_why(distribute):
    code = "import no_such_library"
    distribute("vendor", [], module="vendor_extension", code=code)
    found, because = load_extension("vendor_extension")
    assert found is None
    assert because == "its library does not load: No module named 'no_such_library'"
