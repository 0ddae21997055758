"""Collectives made for a given graph of links: found, proven, timed, run, exported.

Only `ScheduleRunner` imports torch.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
