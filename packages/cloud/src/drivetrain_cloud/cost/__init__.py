"""What training costs: prices, the bill of a run, traces of capacity, and strategies."""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
