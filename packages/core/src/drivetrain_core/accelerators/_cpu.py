"""The CPU, which is a device like others."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from drivetrain_core import machine_limits
from drivetrain_core.accelerators._torch_accelerator import TorchAccelerator
from drivetrain_core.accelerators.facts import AcceleratorFacts

if TYPE_CHECKING:
    from collections.abc import Sequence


class CpuAccelerator(TorchAccelerator):
    """What a CPU tells in other ways than devices do."""

    def __init__(self) -> None:
        """Asks nothing yet."""
        super().__init__("cpu")

    def facts(self, index: int = 0) -> AcceleratorFacts:
        """Returns the processor, and whether Inductor finds a C++ compiler."""
        self._require(index)
        compiler = (
            os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        )
        return AcceleratorFacts(
            type=self.type,
            name=_name(),
            memory_bytes=machine_limits.memory().total,
            collectives=self._collectives(),
            compiler_needs="" if compiler else "a C++ compiler",
        )

    def version(self) -> str:
        """Returns the instructions that torch uses here."""
        return torch.backends.cpu.get_cpu_capability()

    def memory(self, index: int = 0) -> tuple[int, int]:  # noqa: ARG002
        """Returns free and total bytes of this machine, or of the container."""
        return machine_limits.memory()

    def peak_memory(self, index: int = 0) -> int:  # noqa: ARG002
        """Returns the peak of this process's resident memory."""
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/status").read_text("utf-8").splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def reset_peak_memory(self, index: int = 0) -> None:  # noqa: ARG002
        """Begins a new peak of resident memory."""
        # Writing 5 resets it (Linux, man 5 proc).
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether Python or torch had no memory left."""
        return isinstance(error, MemoryError) or super().is_out_of_memory(error)

    def rng_states(self) -> list[torch.Tensor]:
        """Returns the state of torch's generator on the CPU."""
        return [torch.get_rng_state()]

    def set_rng_states(self, states: Sequence[torch.Tensor]) -> None:
        """Sets torch's generator on the CPU."""
        for state in states[:1]:
            torch.set_rng_state(state)


def _name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
