"""Broadcast reads: ranks that need the same bytes read them once and broadcast them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from drivetrain_checkpoint._errors import DaemonError
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from drivetrain_checkpoint._rank_group import RankGroup
    from drivetrain_checkpoint._restore.read_plan import Read

_AHEAD = 2
_MOST_GROUPS = 256


def broadcast_groups(digests: Sequence[str | None]) -> list[tuple[int, ...]]:
    """Returns the groups of ranks that read the same, of two ranks and more.

    Args:
        digests: What each rank reads; None for one that reads for itself.

    Example:
        >>> broadcast_groups(["a", "b", "a", None, "b", "c"])
        [(0, 2), (1, 4)]
    """
    found: dict[str, list[int]] = {}
    for rank, value in enumerate(digests):
        if value is not None:
            found.setdefault(value, []).append(rank)
    groups = [tuple(ranks) for ranks in found.values() if len(ranks) > 1]
    return groups if len(groups) <= _MOST_GROUPS else []


def assign_readers(sizes: Sequence[int], num_readers: int) -> list[int]:
    """Returns who reads each of some pieces, so that all read about as much.

    Example:
        >>> assign_readers([5, 3, 2, 4], 2)
        [0, 1, 1, 0]
    """
    loads = [0] * num_readers
    readers = []
    for size in sizes:
        reader = loads.index(min(loads))
        loads[reader] += size
        readers.append(reader)
    return readers


def prefetched_reads(
    reads: Iterable[Read], read: Callable[[Read], memoryview]
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


def broadcast_reads(
    reads: Sequence[Read],
    read: Callable[[Read], memoryview],
    group: RankGroup,
    ranks: tuple[int, ...],
) -> Iterator[tuple[Read, memoryview]]:
    """Yields every read with its bytes, each read by one rank and broadcast.

    These ranks call it with equal reads, and go through it to the end.

    Args:
        reads: What is read.
        read: Reads one of them.
        group: All ranks.
        ranks: The ranks that read together, by their numbers in the group.

    Raises:
        CheckpointError: A rank could not read; every rank raises it.
    """
    process_group = group.subgroup(ranks)
    here = ranks.index(group.rank)
    readers = assign_readers([item.size_bytes for item in reads], len(ranks))
    shares = list(zip(reads, readers, strict=True))
    own = prefetched_reads((item for item, reader in shares if reader == here), read)
    for item, reader in shares:
        buffer = torch.empty(item.size_bytes + 1, dtype=torch.uint8)
        problem: CheckpointError | None = None
        if reader == here:
            try:
                _, data = next(own)
                buffer[:-1] = torch.frombuffer(data, dtype=torch.uint8)
                buffer[-1] = 0
            except CheckpointError as error:
                buffer[-1] = 1
                problem = error
        source = group.global_rank(ranks[reader])
        dist.broadcast(buffer, src=source, group=process_group)
        if buffer[-1]:
            texts: list[str | None] = [str(problem) if problem else None]
            dist.broadcast_object_list(texts, src=source, group=process_group)
            raise problem or DaemonError(f"another rank could not read: {texts[0]}")
        yield item, memoryview(buffer[:-1].numpy())  # type: ignore[arg-type]
