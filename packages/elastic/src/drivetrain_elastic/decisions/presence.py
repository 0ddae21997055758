"""Which nodes are still there, by when they were last heard of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Presence(NamedTuple):
    """What `judge_presence` decided.

    Attributes:
        lost: Nodes that are gone, with how long they have been silent, in seconds.
        wait_s: When to look again, in seconds from now; None without any node.
    """

    lost: dict[str, float]
    wait_s: float | None


def judge_presence(
    now_s: float, heard_s: Mapping[str, float], *, timeout_s: float
) -> Presence:
    """Decides which nodes have been silent for too long.

    Args:
        now_s: The time, on the master's monotonic clock.
        heard_s: When each node was last heard of.
        timeout_s: How long a node may be silent.

    Example:
        >>> judge_presence(10.0, {"a": 9.5, "b": 7.0}, timeout_s=2.0)
        Presence(lost={'b': 3.0}, wait_s=1.5)
    """
    silent = {node: now_s - at_s for node, at_s in heard_s.items()}
    lost = {node: one for node, one in silent.items() if one >= timeout_s}
    left = [timeout_s - one for node, one in silent.items() if node not in lost]
    return Presence(lost, min(left, default=None))
