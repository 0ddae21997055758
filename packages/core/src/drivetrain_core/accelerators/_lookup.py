"""Finds who knows a type of device: an installed package, core, or torch alone."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core._errors import PluginError
from drivetrain_core._plugins import ACCELERATORS, find_plugin, load_plugin
from drivetrain_core.accelerators._cpu import CpuAccelerator
from drivetrain_core.accelerators._cuda import CudaAccelerator
from drivetrain_core.accelerators._torch_accelerator import TorchAccelerator
from drivetrain_core.accelerators.accelerator import Accelerator

if TYPE_CHECKING:
    from drivetrain_core._plugins import PluginInfo

_BUILT_IN = {"cpu": CpuAccelerator, "cuda": CudaAccelerator}


def accelerator_of(device: torch.device | str) -> Accelerator:
    """Returns who knows the devices of a type; the same object each time.

    Args:
        device: A device, or a type.

    Raises:
        PluginError: A package that offers one for this type does not load.
        RuntimeError: torch knows no such type.

    Example:
        >>> accelerator_of("cpu").device_count()
        1
    """
    device_type = torch.device(device).type
    return _make(device_type, find_plugin(ACCELERATORS, device_type))


@functools.cache
def _make(device_type: str, plugin: PluginInfo | None) -> Accelerator:
    if plugin is None:
        built_in = _BUILT_IN.get(device_type)
        return built_in() if built_in else TorchAccelerator(device_type)
    make: Any = load_plugin(ACCELERATORS, plugin.qualified_name)
    cause = None
    try:
        made = make()
    # A vendor's driver may raise anything.
    except Exception as error:  # noqa: BLE001
        made = cause = error
    if isinstance(made, Accelerator) and made.type == device_type:
        return made
    message = (
        f"{plugin} must be a class, or a function, that makes an Accelerator of the type "
        f"{device_type!r} without arguments; it made {made!r}"
    )
    raise PluginError(message) from cause
