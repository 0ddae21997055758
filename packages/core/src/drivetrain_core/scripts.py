"""Scripts that call `accelerate`, run by programs: up to that call, or under a plan.

What `drivetrain search` and `drivetrain apply` do, for packages that train in a script's
place.
"""

from __future__ import annotations

from typing import Any

from drivetrain_core._command_line.explain import explain_plan
from drivetrain_core._data.batch import batch_size, move_batch, split_batch
from drivetrain_core._errors import ProgramError
from drivetrain_core._scripts.run import apply_plan, build_script, search_script

__all__ = [
    "apply_plan",
    "batch_size",
    "build_script",
    "explain_plan",
    "move_batch",
    "rows_of_batch",
    "search_script",
]


def rows_of_batch(batch: Any, start: int, stop: int) -> Any:
    """Returns some consecutive samples of a batch, as a batch of the same structure.

    Args:
        batch: Tensors, or tuples, lists, mappings and dataclasses of them.
        start: The first sample.
        stop: The one after the last.

    Raises:
        ProgramError: The batch has not so many samples.

    Example:
        >>> import torch
        >>> rows_of_batch((torch.arange(4), ["a", "b", "c", "d"]), 1, 3)
        (tensor([1, 2]), ['b', 'c'])
    """
    size = batch_size(batch)
    if not 0 <= start < stop <= size:
        message = f"a batch of {size} samples has no rows {start} to {stop}"
        raise ProgramError(message)
    return split_batch(batch, (start, stop - start, size - stop))[1]
