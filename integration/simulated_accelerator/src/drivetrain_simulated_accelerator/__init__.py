"""A simulated accelerator for PyTorch: the device `sim`, with real asynchrony.

Its streams are threads, its memory cannot be read by the host, and its errors come late:
what a program forgets to wait for, it gets wrong, as on a GPU. `load` registers it in
this process; the environment variable `SIMULATED_ACCELERATOR` does in every process that
imports torch.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drivetrain_simulated_accelerator._build import build, is_built
    from drivetrain_simulated_accelerator._errors import (
        SimulatedAcceleratorBuildError,
        SimulatedAcceleratorError,
        SimulatedAcceleratorSettingsError,
    )
    from drivetrain_simulated_accelerator._load import is_loaded, load
    from drivetrain_simulated_accelerator._process_group import (
        make_process_group_backend,
    )
    from drivetrain_simulated_accelerator._settings import Settings

__all__ = [
    "VARIABLE",
    "Settings",
    "SimulatedAcceleratorBuildError",
    "SimulatedAcceleratorError",
    "SimulatedAcceleratorSettingsError",
    "autoload",
    "build",
    "is_built",
    "is_loaded",
    "load",
    "make_process_group_backend",
]

VARIABLE = "SIMULATED_ACCELERATOR"

# Imported when they are asked for: every `import torch` imports this module.
_HOMES = {
    "Settings": "_settings",
    "SimulatedAcceleratorBuildError": "_errors",
    "SimulatedAcceleratorError": "_errors",
    "SimulatedAcceleratorSettingsError": "_errors",
    "build": "_build",
    "is_built": "_build",
    "is_loaded": "_load",
    "load": "_load",
    "make_process_group_backend": "_process_group",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def autoload() -> None:
    """Registers the device if the environment asks for it; torch calls it at import.

    Child processes, fork servers and ranks so get the device without a change in their
    program.
    """
    if VARIABLE in os.environ:
        from drivetrain_simulated_accelerator._load import load

        load()
