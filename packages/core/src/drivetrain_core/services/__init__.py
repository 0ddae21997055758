"""The seams of Drivetrain: small protocols by which its packages meet.

Each protocol has a fallback here, so that every package works alone, and a contract
suite in `drivetrain_testing`. Another package offers a better provider by an entry
point in the group `drivetrain.services`; `get_service` finds it. Importing this package
imports no torch: names are loaded when they are first used.
"""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
