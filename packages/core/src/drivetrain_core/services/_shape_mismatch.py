"""Messages for what of a checkpoint does not fit a live state."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from drivetrain_core.services._unwritable import unwritable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import torch

    from drivetrain_core.services.tensor_spec import TensorSpec

_NUM_LINES = 50


def shape_mismatch(name: str, tensor: torch.Tensor, spec: TensorSpec) -> str:
    """Says why a tensor cannot be restored from one in a checkpoint; "" if it can."""
    problem = unwritable(tensor)
    if problem:
        return f"{name!r} {problem}"
    if (tuple(tensor.shape), tensor.dtype) == (spec.global_shape, spec.dtype):
        return ""
    return (
        f"{name!r} is {list(tensor.shape)} {tensor.dtype} here, but "
        f"{list(spec.global_shape)} {spec.dtype} in the checkpoint"
    )


def absent(here: Collection[str], there: Collection[str], what: str = "") -> list[str]:
    """Says what is only here and what is only in the checkpoint.

    Args:
        here: The names of what is here.
        there: The names of what is in the checkpoint.
        what: What they are names of, in front of them.

    Example:
        >>> absent(["a", "b"], ["b", "c"])
        ["'a' is here, but not in the checkpoint", \
"'c' is in the checkpoint, but not here"]
    """
    known_here, known_there = set(here), set(there)
    only_here = [name for name in here if name not in known_there]
    only_there = [name for name in there if name not in known_here]
    return [
        *(f"{what}{name!r} is here, but not in the checkpoint" for name in only_here),
        *(f"{what}{name!r} is in the checkpoint, but not here" for name in only_there),
    ]


def nearest(key: str, known: Sequence[str]) -> str:
    """Returns the names that are like one, for the end of a message."""
    near = difflib.get_close_matches(key, known, n=3)
    return f"; nearest: {', '.join(near)}" if near else f"; it has {listing(known)}"


def listing(names: Sequence[str]) -> str:
    """Returns the first few names, and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (", ".join(names[:5]) or "none") + more


def summary(mismatches: Sequence[str]) -> str:
    """Returns what does not fit, one a line and at most 50 of them.

    Args:
        mismatches: What does not fit; more than nothing.

    Example:
        >>> print(summary(["'a' is here, but not in the checkpoint"]))
        'a' is here, but not in the checkpoint
        >>> print(summary(["this", "that"]))
        2 things do not fit the checkpoint:
          this
          that
    """
    if len(mismatches) == 1:
        return mismatches[0]
    lines = [f"{len(mismatches)} things do not fit the checkpoint:"]
    lines += [f"  {mismatch}" for mismatch in mismatches[:_NUM_LINES]]
    if len(mismatches) > _NUM_LINES:
        lines.append(f"  and {len(mismatches) - _NUM_LINES} more")
    return "\n".join(lines)
