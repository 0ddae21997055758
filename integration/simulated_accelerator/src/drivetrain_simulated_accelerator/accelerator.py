"""What Drivetrain knows of the device: the file that any new device needs."""

from __future__ import annotations

import dataclasses
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from drivetrain_core.accelerators import TorchAccelerator
from drivetrain_simulated_accelerator._load import (
    DEVICE_TYPE,
    NATIVE,
    loaded_settings,
)

if TYPE_CHECKING:
    from drivetrain_core.accelerators import AcceleratorFacts

__all__ = ["SimulatedAccelerator"]


class SimulatedAccelerator(TorchAccelerator):
    """The simulated devices, with what their settings leave out."""

    def __init__(self) -> None:
        """Asks nothing yet."""
        super().__init__(DEVICE_TYPE)

    def facts(self, index: int = 0) -> AcceleratorFacts:
        """Returns what the settings give the devices."""
        found = super().facts(index)
        settings = loaded_settings()
        assert settings is not None
        return dataclasses.replace(
            found,
            streams=settings.streams,
            event_timing=settings.event_timing,
            graphs=settings.graphs,
            pinned_memory=settings.pinned_memory,
        )

    def version(self) -> str:
        """Returns that results are those of the CPU's kernels."""
        return f"simulated, {import_module('torch').backends.cpu.get_cpu_capability()}"

    def register_host_memory(self, address: int, size_bytes: int) -> str:
        """Pins memory, where the settings let it be."""
        done = _native().register_pinned(address, size_bytes)
        return "" if done else "the simulated device pins no memory there"

    def unregister_host_memory(self, address: int) -> None:
        """Gives memory back; a copy that is queued then writes wherever it is."""
        _native().unregister_pinned(address)


def _native() -> Any:
    return sys.modules[NATIVE]
