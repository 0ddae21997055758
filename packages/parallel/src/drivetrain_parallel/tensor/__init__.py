"""Tensor parallelism: a plan derived from a model's data flow, proven, and applied."""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
