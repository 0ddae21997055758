"""What the devices of a machine can do, asked in one way.

torch's own generic interface (`torch.accelerator`, `torch.Stream`, `torch.Event`) is used
as it is; here is what it lacks. A device that torch knows, of whatever vendor, is asked
through its module by what that has; a package that knows better offers an `Accelerator`
by an entry point in the group `drivetrain.accelerators`, named as the device's type.
Importing this imports no torch: names are loaded when they are first used.
"""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
