"""Lets ranks that need the same bytes read each of them once, and pass them on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from drivetrain_checkpoint._errors import DaemonError
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from drivetrain_checkpoint._reads import Read
    from drivetrain_checkpoint._team import Team

__all__ = ["deal", "groups_of", "read_alone", "read_together"]

_AHEAD = 2
_MOST_GROUPS = 256


def groups_of(digests: Sequence[str | None]) -> list[tuple[int, ...]]:
    """Returns the groups of ranks that read the same, of two ranks and more.

    Args:
        digests: What each rank reads; None for one that reads for itself.

    Example:
        >>> groups_of(["a", "b", "a", None, "b", "c"])
        [(0, 2), (1, 4)]
    """
    found: dict[str, list[int]] = {}
    for rank, value in enumerate(digests):
        if value is not None:
            found.setdefault(value, []).append(rank)
    groups = [tuple(ranks) for ranks in found.values() if len(ranks) > 1]
    return groups if len(groups) <= _MOST_GROUPS else []


def deal(sizes: Sequence[int], num_readers: int) -> list[int]:
    """Returns who reads each of some pieces, so that all read about as much.

    Example:
        >>> deal([5, 3, 2, 4], 2)
        [0, 1, 1, 0]
    """
    loads = [0] * num_readers
    readers = []
    for size in sizes:
        reader = loads.index(min(loads))
        loads[reader] += size
        readers.append(reader)
    return readers


def read_alone(
    reads: Sequence[Read], read: Callable[[Read], memoryview]
) -> Iterator[tuple[Read, memoryview]]:
    """Yields every read with its bytes, the next ones being fetched meanwhile."""
    with ThreadPoolExecutor(_AHEAD) as pool:
        waiting: list[tuple[Read, Future[memoryview]]] = []
        for item in reads:
            waiting.append((item, pool.submit(read, item)))
            if len(waiting) > _AHEAD:
                first, data = waiting.pop(0)
                yield first, data.result()
        for first, data in waiting:
            yield first, data.result()


def read_together(
    reads: Sequence[Read],
    read: Callable[[Read], memoryview],
    team: Team,
    ranks: Sequence[int],
    group: dist.ProcessGroup,
) -> Iterator[tuple[Read, memoryview]]:
    """Yields every read with its bytes, each read by one rank and broadcast.

    All ranks of the group call it with equal reads, and go through it to the end.

    Args:
        reads: What is read.
        read: Reads one of them.
        team: All ranks.
        ranks: The ranks of the group, by their numbers in the team.
        group: Their process group; it moves CPU tensors.

    Raises:
        CheckpointError: A rank could not read; every rank raises it.
    """
    here = ranks.index(team.rank)
    readers = deal([item.size_bytes for item in reads], len(ranks))
    with ThreadPoolExecutor(_AHEAD) as pool:
        mine = [
            item for item, reader in zip(reads, readers, strict=True) if reader == here
        ]
        queue = iter(mine)
        ahead: list[Future[memoryview]] = []
        for item, reader in zip(reads, readers, strict=True):
            while reader == here and len(ahead) < _AHEAD:
                following = next(queue, None)
                if following is None:
                    break
                ahead.append(pool.submit(read, following))
            buffer = torch.empty(item.size_bytes + 1, dtype=torch.uint8)
            problem: CheckpointError | None = None
            if reader == here:
                try:
                    data = ahead.pop(0).result()
                    buffer[:-1] = torch.frombuffer(data, dtype=torch.uint8)
                    buffer[-1] = 0
                except CheckpointError as error:
                    buffer[-1] = 1
                    problem = error
            source = _global_rank(team, ranks[reader])
            dist.broadcast(buffer, src=source, group=group)
            if buffer[-1]:
                texts: list[str | None] = [str(problem) if problem else None]
                dist.broadcast_object_list(texts, src=source, group=group)
                raise problem or _failure_of_another(texts[0])
            yield item, memoryview(buffer[:-1].numpy())  # type: ignore[arg-type]


def _failure_of_another(text: str | None) -> CheckpointError:
    """Returns the error of a rank that could not read what it was to pass on."""
    return DaemonError(f"another rank could not read: {text}")


def _global_rank(team: Team, rank: int) -> int:
    return rank if team.group is None else dist.get_global_rank(team.group, rank)
