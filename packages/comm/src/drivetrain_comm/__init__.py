"""Unchanged DDP, as fast as its network allows.

Importing this package imports no torch. Where torch is there already, the backend
`"drivetrain"` becomes known to it, and nothing changes for groups of other backends;
`import drivetrain_comm.auto` enables tuned process groups for unchanged scripts.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export
from drivetrain_core.moved import forward_modules as _forward_modules

if TYPE_CHECKING:
    from drivetrain_comm._enable import BACKEND, disable, enable, is_enabled, register
    from drivetrain_comm._settings import Settings
    from drivetrain_comm._version import __version__
    from drivetrain_comm.backend._process_group import (
        TunedProcessGroup,
        TunedProcessGroupFactory,
    )
    from drivetrain_comm.selection._choice import Choice

__all__ = [
    "BACKEND",
    "Choice",
    "Settings",
    "TunedProcessGroup",
    "TunedProcessGroupFactory",
    "__version__",
    "disable",
    "enable",
    "is_enabled",
    "register",
]

_HOMES = {
    "__version__": "_version",
    "BACKEND": "_enable",
    "Choice": "selection._choice",
    "Settings": "_settings",
    "TunedProcessGroup": "backend._process_group",
    "TunedProcessGroupFactory": "backend._process_group",
    "disable": "_enable",
    "enable": "_enable",
    "is_enabled": "_enable",
    "register": "_enable",
}


def __getattr__(name: str) -> Any:
    """Imports what needs torch when it is first used."""
    return _load_export(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)


_forward_modules(
    {
        # DDP modules that were pickled whole name it.
        "drivetrain_comm._fusion": "drivetrain_comm.ddp._fusion",
        "drivetrain_comm.adviser": "drivetrain_fabric.adviser",
        "drivetrain_comm.fabric": "drivetrain_fabric.network",
        "drivetrain_comm.horovod": "drivetrain_horovod.on_comm",
        "drivetrain_comm.overlap": "drivetrain_parallel.overlap",
        "drivetrain_comm.topology": "drivetrain_fabric.topology",
    }
)

if "torch" in sys.modules:
    from drivetrain_comm._enable import register

    register()
