"""Reads parts of tensors, and nothing beside them."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from drivetrain_checkpoint._errors import CorruptCheckpointError
from drivetrain_checkpoint._pieces import DTYPES, layout_of
from drivetrain_checkpoint._reads import gathered, plan_fills

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from torch import Tensor

    from drivetrain_checkpoint._layout import Block, Layout, TensorLayout
    from drivetrain_checkpoint._sources import ImageSource

__all__ = ["Wanted", "read_blocks", "wanted_of", "whole"]


class Wanted(NamedTuple):
    """Part of a tensor, and where it goes.

    Args:
        tensor: The tensor, as it was saved.
        block: The part.
        target: What is written in place; of the part's shape, any dtype and device.
    """

    tensor: TensorLayout
    block: Block
    target: Tensor


def whole(tensor: TensorLayout) -> Block:
    """Returns the block that is all of a tensor."""
    return tuple(((0, size),) for size in tensor.shape)


def read_blocks(
    layout: Layout, source_of: Callable[[int], ImageSource], wanted: Iterable[Wanted]
) -> int:
    """Writes parts of tensors in place.

    Args:
        layout: Who saved what.
        source_of: Returns where a rank's bytes are read; it is asked again and again.
        wanted: The parts; what lies together is read together.

    Returns:
        How many bytes were read.

    Raises:
        CorruptCheckpointError: What was saved is damaged, or does not cover a part.
        StorageError: The storage fails.
    """
    targets, fills = {}, []
    for number, (tensor, block, target) in enumerate(wanted):
        found = list(
            plan_fills(layout, tensor, block, lambda rank: source_of(rank).slots())
        )
        covered = sum(math.prod(s.stop - s.start for s in one.theirs) for one in found)
        if covered != target.numel():
            message = (
                f"the checkpoint has {covered:,} of the {target.numel():,} elements of "
                f"{tensor.name} that are needed"
            )
            raise CorruptCheckpointError(message)
        # A tensor may be asked for in several parts.
        fills += [dataclasses.replace(one, name=str(number)) for one in found]
        targets[str(number)] = target
    num_bytes = 0
    for read in gathered(fills):
        data = source_of(read.source).read(read.start, read.size_bytes)
        num_bytes += read.size_bytes
        for one in read.fills:
            at = one.start - read.start
            raw = torch.frombuffer(data[at : at + one.size_bytes], dtype=torch.uint8)
            rows = raw.view(DTYPES[one.dtype]).view(one.shape)
            with torch.no_grad():
                targets[one.name][one.ours].copy_(rows[one.theirs])
    return num_bytes


def wanted_of(layout: Layout, targets: Mapping[str, Tensor]) -> Iterator[Wanted]:
    """Yields what fills tensors: all of them, or of a DTensor this rank's own block.

    Args:
        layout: The tensors that were saved; it has all that are asked for.
        targets: What is written in place, by name.
    """
    entries = {entry.name: entry for entry in layout.tensors}
    sharded = {n: t for n, t in targets.items() if hasattr(t, "to_local")}
    world_size = dist.get_world_size() if sharded else 1
    here = layout_of(sharded, world_size)
    blocks = {e.name: here.held(e, dist.get_rank()) for e in here.tensors}
    for name, target in targets.items():
        local: Any = target.detach()
        local = local.to_local() if name in blocks else local
        block = blocks[name] if name in blocks else whole(entries[name])
        yield Wanted(entries[name], block, local)
