"""Registration of the device with torch, once for a process."""

from __future__ import annotations

import atexit
import json
import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING

from drivetrain_simulated_accelerator._build import (
    COMMAND,
    FACTS,
    find_library,
    versions_built,
)
from drivetrain_simulated_accelerator._errors import SimulatedAcceleratorError
from drivetrain_simulated_accelerator._settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "SIMULATED_ACCELERATOR"
NATIVE = "drivetrain_simulated_accelerator._native"
DEVICE_TYPE = "sim"

_loaded: Settings | None = None


def is_loaded() -> bool:
    """Returns whether the device is registered in this process."""
    return _loaded is not None


def loaded_settings() -> Settings | None:
    """Returns the settings that the device was loaded with; None if it was not."""
    return _loaded


def load(settings: Settings | None = None) -> None:
    """Registers the device `sim` in this process; a second call does nothing.

    From then on `torch.accelerator` means this device, and it cannot be undone.

    Args:
        settings: What the devices have; by default what the environment variable
            `SIMULATED_ACCELERATOR` names, else the defaults.

    Raises:
        SimulatedAcceleratorError: The library is not built, the device is loaded with
            other settings, the process has another accelerator, or a setting of the
            environment is not valid.
    """
    global _loaded
    if settings is None:
        settings = _loaded or Settings.from_text(os.environ.get(VARIABLE, ""))
    if _loaded is not None:
        if settings != _loaded:
            message = (
                "the simulated accelerator is loaded already, with other settings: "
                f"{_loaded.to_text()}, not {settings.to_text()}"
            )
            raise SimulatedAcceleratorError(message)
        return
    _check_no_other_accelerator()
    library = _find_built_library()
    _register(library, settings)
    _loaded = settings


def _check_no_other_accelerator() -> None:
    """Raises if the process has an accelerator that this one would hide."""
    import torch

    name = torch._C._get_privateuse1_backend_name()
    if name != "privateuseone":
        message = (
            f"this process has a device of another library already, {name!r}: torch has "
            "room for one of them, and the simulated accelerator needs it"
        )
        raise SimulatedAcceleratorError(message)
    if VARIABLE not in os.environ and torch.cuda.is_available():
        message = (
            "this process can use CUDA, and torch.accelerator would mean the simulated "
            f"accelerator instead: set {VARIABLE}=1 to want that"
        )
        raise SimulatedAcceleratorError(message)


def _find_built_library() -> Path:
    """Returns the library, after a look at what it was built for."""
    import torch

    library = find_library()
    if library is None:
        others = [
            version for version in versions_built() if version != torch.__version__
        ]
        built = f" (it is for torch {', '.join(others)})" if others else ""
        message = (
            "the simulated accelerator's library is not built for torch "
            f"{torch.__version__} and these sources{built}: run `{COMMAND}`"
        )
        raise SimulatedAcceleratorError(message)
    found = json.loads((library.parent / FACTS).read_text())["torch"]
    if found != torch.__version__:
        message = (
            f"{library} was built for torch {found}, and this is torch "
            f"{torch.__version__}: run `{COMMAND}`"
        )
        raise SimulatedAcceleratorError(message)
    return library


def _register(library: Path, settings: Settings) -> None:
    """Loads the library, and tells torch about the device."""
    import torch
    from torch.utils import backend_registration

    backend_registration.rename_privateuse1_backend(DEVICE_TYPE)
    loader = ExtensionFileLoader(NATIVE, str(library))
    spec = spec_from_file_location(NATIVE, library, loader=loader)
    if spec is None:
        message = f"{library} cannot be loaded"
        raise SimulatedAcceleratorError(message)
    native = module_from_spec(spec)
    loader.exec_module(native)
    sys.modules[NATIVE] = native
    native.configure(
        settings.devices,
        settings.memory_bytes,
        settings.bf16,
        settings.streams,
        settings.event_timing,
        settings.pinned_memory,
        settings.graphs,
        settings.readable,
        settings.poison,
    )
    native.set_delays(
        settings.op_delay_us,
        settings.copy_delay_us,
        settings.collective_delay_us,
        settings.collective_us_per_mib,
    )
    native.register_hooks()
    native.register_ops_with_composites()
    native.register_autocast()
    # These need the native library.
    from drivetrain_simulated_accelerator import _process_group, _torch_sim

    torch._register_device_module(DEVICE_TYPE, _torch_sim)  # type: ignore[no-untyped-call]
    sys.modules[f"torch.{DEVICE_TYPE}"] = _torch_sim
    backend_registration.generate_methods_for_privateuse1_backend()
    _process_group.register()
    # Static destructors of torch must not meet a kernel that runs.
    atexit.register(native.quiesce)
