"""Pipeline parallel: a model split into stages by data flow, proven in one process."""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub

# Named as the modules that they come from, which would hide them.
from drivetrain_parallel.pipeline.balance import balance as balance

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
