"""Unchanged DDP, as fast as its network allows.

Importing this package imports no torch. Where torch is there already, the backend
`"drivetrain"` becomes known to it, and nothing changes for groups of other backends;
`import drivetrain_comm.auto` enables tuned process groups for unchanged scripts.
"""

import sys

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)

if "torch" in sys.modules:
    from drivetrain_comm._enable import register

    register()
