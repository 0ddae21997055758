"""All-reduce algorithms, and the choice of one with its streams and segments."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from drivetrain_comm.algorithms import direct, halving, hierarchical, ring
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from drivetrain_comm.algorithms._steps import Step

STOCK = "stock"
"""The name of torch's own backend among the algorithms."""

SCHEDULE = "schedule"
"""The name of the schedule that the user has given, if there is one."""

MOST_STREAMS = 16

_FLAT: dict[str, ModuleType] = {"ring": ring, "direct": direct, "halving": halving}
_PREFIX = "hierarchical-"
ALGORITHMS = (STOCK, *_FLAT, *(f"{_PREFIX}{name}" for name in _FLAT))


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """How an all-reduce is carried out; equal on all ranks.

    Args:
        algorithm: One of `ALGORITHMS`, or `SCHEDULE`.
        num_streams: How many connections to a peer share the vector, 1 to 16.
        segment_bytes: How much travels at once. What arrives is passed on by segments.

    Raises:
        DistributedError: There is no such algorithm, or a number is out of range.

    Example:
        >>> Choice(algorithm="ring").num_streams
        1
    """

    algorithm: str
    num_streams: int = 1
    segment_bytes: int = 128 << 10

    def __post_init__(self) -> None:
        """Checks the values."""
        if self.algorithm not in (*ALGORITHMS, SCHEDULE):
            message = (
                f"no algorithm {self.algorithm!r}: there are {', '.join(ALGORITHMS)}"
            )
            raise DistributedError(message)
        if not 1 <= self.num_streams <= MOST_STREAMS:
            message = f"num_streams must be 1 to {MOST_STREAMS}, got {self.num_streams}"
            raise DistributedError(message)
        if not 1 << 10 <= self.segment_bytes <= 1 << 18:
            message = (
                f"segment_bytes must be 1 KiB to 256 KiB, got {self.segment_bytes}"
            )
            raise DistributedError(message)

    def __str__(self) -> str:
        """For people: `ring, 4 streams`."""
        streams = f", {self.num_streams} streams" if self.num_streams > 1 else ""
        return f"{self.algorithm}{streams}"


def available(hosts: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Returns the algorithms that differ from each other on these hosts.

    Args:
        hosts: The ranks of each host.

    Example:
        >>> available([[0], [1]])
        ('stock', 'direct')
        >>> available([[0, 1], [2, 3]])
        ('stock', 'ring', 'direct', 'halving', 'hierarchical-direct')
    """
    size = sum(len(ranks) for ranks in hosts)
    if size == 1:
        return (STOCK,)
    found = [STOCK, *_flat_for(size)]
    if 1 < len(hosts) < size:
        found += [f"{_PREFIX}{name}" for name in _flat_for(len(hosts))]
    return tuple(found)


def _flat_for(size: int) -> list[str]:
    # Between two, all of them are the same exchange.
    return ["direct"] if size == 2 else list(_FLAT)


def steps_of(
    algorithm: str, hosts: Sequence[Sequence[int]], rank: int
) -> tuple[list[Step], int]:
    """Returns what a rank does, and into how many chunks the vector is cut.

    Args:
        algorithm: One of `ALGORITHMS` but `STOCK`.
        hosts: The ranks of each host. A ring passes through one host after the other,
            whatever the numbers of its ranks.
        rank: One of them.

    Example:
        >>> steps, num_chunks = steps_of("hierarchical-ring", [[0, 1], [2, 3]], 0)
        >>> num_chunks
        4
    """
    if algorithm.startswith(_PREFIX):
        between = _FLAT[algorithm.removeprefix(_PREFIX)]
        num_chunks = hierarchical.num_shares(hosts) * between.num_chunks(len(hosts))
        inner: Callable[..., list[Step]] = between.all_reduce
        return hierarchical.all_reduce(
            hosts, rank, range(num_chunks), inner
        ), num_chunks
    flat = _FLAT[algorithm]
    ranks = list(chain.from_iterable(hosts))
    num_chunks = flat.num_chunks(len(ranks))
    return flat.all_reduce(ranks, rank, range(num_chunks)), num_chunks
