"""What packages that search plans, lay models out, or run trials need of core.

Names that a training script has no use for: how a strategy is read and checked, how a
batch is split, which blocks a model repeats, child processes. They keep what they do
within a minor version. All else that packages need is in `drivetrain_core` itself, and in
`services`, `numerics`, `commands` and `testing`.
"""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
