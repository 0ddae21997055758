"""What a rank does with its time in a step, by name."""

from __future__ import annotations

__all__ = ["APPLY", "COMPUTE", "OUTSIDE", "OWN", "SAVE", "WAIT"]

COMPUTE = "compute"
"""What a step computes, where the script has no other name for it."""

APPLY = "apply"
"""The update of the parameters."""

OUTSIDE = "outside"
"""The script between two steps."""

SAVE = "save"
"""A checkpoint, for as long as no step is made."""

WAIT = "wait"
"""For other ranks."""

OWN = frozenset({COMPUTE, APPLY, OUTSIDE})
"""What a rank does by itself in each step."""
