"""Unchanged DDP, as fast as its network allows.

Importing this package imports no torch. Where torch is there already, the backend
`"drivetrain"` becomes known to it, and nothing changes for groups of other backends;
`import drivetrain_comm.auto` enables tuned process groups for unchanged scripts.
"""

from __future__ import annotations

import sys

from drivetrain_core.lazy import attach_stub as _attach_stub
from drivetrain_core.moved import forward_modules as _forward_modules

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)

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
