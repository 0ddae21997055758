"""How connections share equal ways when switches pick a way by hashing."""

from __future__ import annotations

from drivetrain_fabric.adviser._errors import AdviserError

_ENOUGH = 0.8
_MOST_QUEUE_PAIRS = 8


def expected_paths(flows: int, paths: int) -> float:
    """Returns how many ways carry at least one flow, on average: n (1 - (1 - 1/n)^k).

    Args:
        flows: k.
        paths: n.

    Raises:
        AdviserError: There is no flow, or no way.

    Example:
        >>> expected_paths(1, 8), round(expected_paths(8, 8), 2)
        (1.0, 5.25)
    """
    if flows < 1 or paths < 1:
        message = f"flows and paths must be at least 1, got {flows} and {paths}"
        raise AdviserError(message)
    if flows == 1:
        return 1.0
    return paths * (1.0 - (1.0 - 1.0 / paths) ** flows)


def queue_pairs(connections: int, paths: int) -> int:
    """Returns how many queue pairs a connection needs so that most ways are used.

    It is the least of 1, 2, 4 and 8 with which 80% of the ways carry something, on
    average, or 8: each queue pair costs memory of the card and time at the start.

    Args:
        connections: How many a host has at a time, one for each RDMA port.
        paths: Over how many equal ways they are spread.

    Raises:
        AdviserError: There is no connection, or no way.

    Example:
        >>> queue_pairs(8, 8), queue_pairs(4, 8), queue_pairs(8, 1)
        (2, 4, 1)
    """
    count = 1
    while (
        count < _MOST_QUEUE_PAIRS
        and expected_paths(connections * count, paths) < _ENOUGH * paths
    ):
        count *= 2
    return count
