"""What says that a node will be taken away."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityNotice:
    """A node is to go: a spot instance is reclaimed, a machine is drained.

    A later notice for the same node replaces an earlier one; one whose deadline is
    infinite withdraws it.

    Args:
        deadline_s: When the node may be gone, as `time.monotonic()` counts on the
            machine that hears of it. Clocks of machines are never compared: a notice
            that crosses a wire carries the seconds that are left.
        node: The node's name.
        reason: Who says so and why, for people.

    Raises:
        ValueError: The deadline is not a number, or no node is named.

    Example:
        >>> notice = CapacityNotice.within(30, node="worker-3", reason="spot reclaim")
        >>> 29 < notice.remaining_s() <= 30
        True
    """

    deadline_s: float
    node: str
    reason: str

    def __post_init__(self) -> None:
        """Checks the fields."""
        if math.isnan(self.deadline_s):
            message = "the deadline of a notice must be a number, got nan"
            raise ValueError(message)
        if not self.node:
            message = "a notice must name the node that is to go"
            raise ValueError(message)

    @classmethod
    def within(cls, seconds: float, *, node: str, reason: str) -> CapacityNotice:
        """Returns a notice for so many seconds from now."""
        return cls(deadline_s=time.monotonic() + seconds, node=node, reason=reason)

    @property
    def withdrawn(self) -> bool:
        """Whether this takes back an earlier notice for the node."""
        return self.deadline_s == math.inf

    def remaining_s(self, now_s: float | None = None) -> float:
        """Returns the seconds that are left, at least 0.

        Args:
            now_s: The time as `time.monotonic()` counts; now by default.
        """
        now_s = time.monotonic() if now_s is None else now_s
        return max(0.0, self.deadline_s - now_s)
