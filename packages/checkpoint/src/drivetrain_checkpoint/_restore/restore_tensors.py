"""Restores tensors in place; bytes that several ranks need are read once."""

from __future__ import annotations

import functools
from array import array
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._layout.partition import DTYPES, is_plain_memory
from drivetrain_checkpoint._restore.broadcast_reads import (
    broadcast_groups,
    broadcast_reads,
    prefetched_reads,
)
from drivetrain_checkpoint._restore.read_blocks import wanted_blocks
from drivetrain_checkpoint._restore.read_plan import (
    BlockCopy,
    Read,
    coalesced_reads,
    digest,
    plan_copies,
)
from drivetrain_checkpoint._restore.write_blocks import BlockWriter
from drivetrain_core.native_library import address_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from drivetrain_checkpoint._rank_group import RankGroup
    from drivetrain_checkpoint._restore.locate import LocatedSave


def restore_tensors(
    group: RankGroup, save: LocatedSave, targets: Mapping[str, Tensor]
) -> None:
    """Writes tensors in place from a save; all ranks call it.

    Ranks that need the same bytes from farther away than their own memory read each of
    them once, and broadcast.

    Args:
        group: The ranks.
        save: What is read.
        targets: The tensors by name; a DTensor takes its own block.

    Raises:
        CorruptCheckpointError: What was saved is damaged, or does not cover a tensor.
        CheckpointError: It cannot be read.
    """
    wanted = wanted_blocks(save.layout, targets, group)

    def plan() -> tuple[list[list[Read]], list[str | None]]:
        # What all ranks want as a whole, and what each may want a part of.
        copies: tuple[list[BlockCopy], ...] = ([], [])
        for copy in plan_copies(save.layout, wanted, lambda r: save.source(r).slots):
            copies[wanted[copy.target].is_sharded].append(copy)
        reads = [coalesced_reads(found) for found in copies]
        return reads, [_shared_digest(save, found) for found in reads]

    def read(item: Read) -> memoryview:
        return save.source(item.source).read(item.start, item.size_bytes)

    planned, digests = group.run_on_all(plan)
    answers = group.all_gather(digests)
    copies, writer = _MemoryCopies(), BlockWriter(torch.get_num_threads())

    def write(reads: list[Read], ours: tuple[int, ...] | None) -> None:
        if ours is None:
            steps = prefetched_reads(reads, read)
        else:
            steps = broadcast_reads(reads, read, group, ours)
        for item, data in steps:
            source = save.source(item.source)
            for copy in item.copies:
                target = wanted[copy.target].target
                if not (source.is_local and copies.add(copy, source, target)):
                    writer.write(copy, data[copy.start - item.start :], target)

    for reads, *shared in zip(planned, *answers, strict=True):
        mates = broadcast_groups(shared)
        for ranks in mates:
            group.subgroup(ranks)  # which all ranks make in one order
        ours = next((ranks for ranks in mates if group.rank in ranks), None)
        # A rank that cannot read must not be waited for in the next broadcast.
        group.run_on_all(functools.partial(write, reads, ours))
    group.run_on_all(copies.run)
    group.run_on_all(writer.end)


class _MemoryCopies:
    """Copies within this machine's memory, which are made together."""

    def __init__(self) -> None:
        self._sources, self._targets, self._sizes = array("Q"), array("Q"), array("Q")
        self._written: list[Tensor] = []

    def add(self, copy: BlockCopy, source: Any, target: Tensor) -> bool:
        """Adds a copy, if it is one run of bytes here and there."""
        rows, *inner = copy.shape or (1,)
        is_run = (
            is_plain_memory(target)
            and target.dtype == DTYPES[copy.dtype]
            and tuple(inner) == tuple(target.shape[1:])
            and copy.theirs == tuple(slice(0, size) for size in copy.shape)
        )
        if is_run:
            first = copy.ours[0].start if copy.ours else 0
            at = first * (copy.size_bytes // rows)
            self._sources.append(source.address(copy.start))
            self._targets.append(address_of(target, "a target") + at)
            self._sizes.append(copy.size_bytes)
            if not target.is_inference():
                self._written.append(target)
        return is_run

    def run(self) -> None:
        """Makes the copies."""
        threads = torch.get_num_threads()
        _native.copy(self._sources, self._targets, self._sizes, threads)
        # Who keeps a copy of a tensor must be able to tell that it is another now.
        torch.autograd.graph.increment_version(self._written)


def _shared_digest(save: LocatedSave, reads: Sequence[Read]) -> str | None:
    """Returns what ranks that read the same have in common; None to read alone."""
    if not reads or any(save.source(read.source).is_local for read in reads):
        return None
    return digest(reads)
