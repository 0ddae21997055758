"""Faults to order, for tests: a process killed, stopped or slowed, a network cut in two.

Each fault is ended by whoever began it: they are context managers, which heal when their
block is left, also by an error, or they return an `Ongoing` that can be healed. They need
Linux. What needs more than an ordinary user has says so when it is missing;
`missing_because` says it before, for a test that is to be skipped.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
