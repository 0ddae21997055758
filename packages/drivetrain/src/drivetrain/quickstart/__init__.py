"""The main job: fast, and hard to kill, shown on a model of ours or a script of yours.

It searches for a plan, trains with it beside the program as written, trains once more
with two workers of which one is killed, and ends with one table. Importing this package
imports no torch.
"""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
