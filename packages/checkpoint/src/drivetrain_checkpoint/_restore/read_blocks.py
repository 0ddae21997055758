"""Reads blocks of tensors, and no other bytes, from sources that check what they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_checkpoint._layout.partition import layout_of
from drivetrain_checkpoint._layout.tensor_layout import whole_block
from drivetrain_checkpoint._restore.read_plan import (
    Wanted,
    coalesced_reads,
    plan_copies,
)
from drivetrain_checkpoint._restore.write_blocks import BlockWriter
from drivetrain_core.services.chunked_tensor import ChunkedTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from drivetrain_checkpoint._layout.shard_source import ShardSource
    from drivetrain_checkpoint._layout.tensor_layout import Layout
    from drivetrain_checkpoint._rank_group import RankGroup


def wanted_blocks(
    layout: Layout, targets: Mapping[str, Any], group: RankGroup
) -> list[Wanted]:
    """Returns what fills tensors: all of them, or of sharded ones what this rank holds.

    Args:
        layout: The tensors that were saved; it has all that are asked for.
        targets: What is written in place, by name.
        group: The ranks among which sharded tensors lie.
    """
    entries = {entry.name: entry for entry in layout.tensors}
    sharded = {n: t for n, t in targets.items() if hasattr(t, "to_local")}
    here = layout_of(sharded, group.world_size, group.process_group)
    held = {entry.name: here.held(entry, group.rank) for entry in here.tensors}
    found = []
    for name, target in targets.items():
        entry = entries[name]
        if isinstance(target, ChunkedTensor):
            for offset, local in target.local_chunks():
                ranges = zip(offset, local.shape, strict=True)
                block = tuple(((first, size),) for first, size in ranges)
                found.append(Wanted(entry, block, local, is_sharded=True))
        elif name in held:
            local = target.detach().to_local()
            found.append(Wanted(entry, held[name], local, is_sharded=True))
        else:
            found.append(Wanted(entry, whole_block(entry.shape), target.detach()))
    return found


def read_blocks(
    layout: Layout, source_of: Callable[[int], ShardSource], wanted: Iterable[Wanted]
) -> None:
    """Writes blocks of tensors in place.

    Args:
        layout: Who saved what.
        source_of: Returns where a rank's bytes are read; it is asked again and again.
        wanted: The blocks; what lies together is read together.

    Raises:
        CorruptCheckpointError: What was saved is damaged, or does not cover a block.
        StorageError: The storage fails.
    """
    blocks, writer = list(wanted), BlockWriter(torch.get_num_threads())
    copies = plan_copies(layout, blocks, lambda rank: source_of(rank).slots)
    for read in coalesced_reads(copies):
        data = source_of(read.source).read(read.start, read.size_bytes)
        for copy in read.copies:
            rows = data[copy.start - read.start :]
            writer.write(copy, rows, blocks[copy.target].target)
    writer.end()
