"""Prediction of the time that a step's gradients take, from when each is ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drivetrain_comm.selection._cost import Cost


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """One of DDP's buckets.

    Args:
        ready_s: When its gradients are there, after the first bucket's.
        size_bytes: Of them.
    """

    ready_s: float
    size_bytes: int


def merged(buckets: Sequence[Bucket], limit: Callable[[int], int]) -> list[Bucket]:
    """Returns the messages that buckets become; each is ready with its last one.

    Args:
        buckets: In the order in which they become ready.
        limit: How many bytes are collected for the message behind so many.

    Example:
        >>> parts = [Bucket(ready_s=i / 10, size_bytes=4) for i in range(3)]
        >>> [(m.ready_s, m.size_bytes) for m in merged(parts, lambda _: 8)]
        [(0.1, 8), (0.2, 4)]
    """
    found: list[Bucket] = []
    waiting = 0
    for at, bucket in enumerate(buckets):
        waiting += bucket.size_bytes
        if waiting >= limit(len(found)) or at == len(buckets) - 1:
            found.append(Bucket(ready_s=bucket.ready_s, size_bytes=waiting))
            waiting = 0
    return found


def span_s(messages: Sequence[Bucket], cost: Callable[[int], Cost]) -> float:
    """Returns the time from the first bucket to the end of the last all-reduce.

    Args:
        messages: What `merged` returned.
        cost: Of an all-reduce of so many bytes.

    Example:
        >>> from drivetrain_comm.selection._cost import Cost
        >>> messages = [Bucket(ready_s=i / 10, size_bytes=4) for i in range(3)]
        >>> round(span_s(messages, lambda size: Cost(busy_s=0.2, alone_s=0.2)), 3)
        0.6
    """
    free = end = 0.0
    for message in messages:
        took = cost(message.size_bytes)
        free = max(free, message.ready_s) + took.busy_s
        end = max(end, free, message.ready_s + took.alone_s)
    return end
