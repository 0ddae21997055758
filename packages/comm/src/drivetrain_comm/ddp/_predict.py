"""Prediction of the time that a step's gradients take, from when each is ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_comm.selection._cost import cost_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_comm.selection._cost import Network
    from drivetrain_comm.selection._load import Load


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """One of DDP's buckets.

    Args:
        ready_s: When its gradients are there, after the first bucket's.
        size_bytes: Of them.
    """

    ready_s: float
    size_bytes: int


def merged(buckets: Sequence[Bucket], bucket_bytes: int) -> list[Bucket]:
    """Returns the messages that buckets become; each is ready with its last one.

    Args:
        buckets: In the order in which they become ready.
        bucket_bytes: How much is collected before it leaves.

    Example:
        >>> parts = [Bucket(ready_s=i / 10, size_bytes=4) for i in range(3)]
        >>> [(m.ready_s, m.size_bytes) for m in merged(parts, 8)]
        [(0.1, 8), (0.2, 4)]
    """
    found: list[Bucket] = []
    waiting = 0
    for at, bucket in enumerate(buckets):
        waiting += bucket.size_bytes
        if waiting >= bucket_bytes or at == len(buckets) - 1:
            found.append(Bucket(ready_s=bucket.ready_s, size_bytes=waiting))
            waiting = 0
    return found


def span_s(
    buckets: Sequence[Bucket],
    bucket_bytes: int,
    load: Load,
    network: Network,
    num_streams: int,
) -> float:
    """Returns the time from the first bucket to the end of the last all-reduce.

    Args:
        buckets: In the order in which they become ready.
        bucket_bytes: How much is collected before it leaves.
        load: Of the algorithm.
        network: What was measured.
        num_streams: Connections to each peer.
    """
    free = end = 0.0
    for message in merged(buckets, bucket_bytes):
        cost = cost_of(load, network, num_streams, message.size_bytes)
        free = max(free, message.ready_s) + cost.busy_s
        end = max(end, free, message.ready_s + cost.alone_s)
    return end
