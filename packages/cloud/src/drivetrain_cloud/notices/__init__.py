"""Notices that a node will be taken away: what clouds say, and who hears of it."""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
