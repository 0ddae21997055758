"""Scripts that call `accelerate`, run by programs: up to that call, or under a plan.

What `drivetrain search` and `drivetrain apply` do, for packages that train in a script's
place.
"""

from __future__ import annotations

from drivetrain_core._command_line.explain import explain_plan
from drivetrain_core._data.batch import batch_size, move_batch, split_batch
from drivetrain_core._scripts.run import apply_plan, build_script, search_script

__all__ = [
    "apply_plan",
    "batch_size",
    "build_script",
    "explain_plan",
    "move_batch",
    "search_script",
    "split_batch",
]
