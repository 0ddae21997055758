"""Reads what explains a failure: the kernel's log, GPUs, networks, output, exceptions.

What it means is decided by `drivetrain_health.failures`. What a machine does
not have, or does not let this process read, is missing with a reason; nothing here fails
because of it, and nothing waits for hardware that does not answer.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
