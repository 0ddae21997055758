"""Reads parts of tensors from a committed checkpoint, and nothing beside them."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from drivetrain_checkpoint._errors import CorruptCheckpointError
from drivetrain_checkpoint._pieces import DTYPES
from drivetrain_checkpoint._reads import gathered, plan_fills
from drivetrain_checkpoint._sources import StorageSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from drivetrain_checkpoint._layout import Block, TensorLayout
    from drivetrain_checkpoint._pick import Picked

__all__ = ["Wanted", "read_blocks", "whole"]


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


def read_blocks(picked: Picked, wanted: Iterable[Wanted]) -> int:
    """Writes parts of tensors in place, after comparing them with their checksums.

    Args:
        picked: The checkpoint.
        wanted: The parts; what lies together is read together.

    Returns:
        How many bytes were read.

    Raises:
        CorruptCheckpointError: What was saved is damaged, or does not cover a part.
        StorageError: The storage fails.
    """

    @functools.cache
    def source(rank: int) -> StorageSource:
        return StorageSource(picked.storage, picked.name, picked.root, rank)

    targets, fills = {}, []
    for number, (tensor, block, target) in enumerate(wanted):
        found = list(
            plan_fills(picked.layout, tensor, block, lambda rank: source(rank).slots())
        )
        covered = sum(math.prod(s.stop - s.start for s in one.theirs) for one in found)
        if covered != target.numel():
            message = (
                f"{picked.storage.url}/{picked.name} has {covered:,} of the "
                f"{target.numel():,} elements of {tensor.name} that are needed"
            )
            raise CorruptCheckpointError(message)
        # A tensor may be asked for in several parts.
        fills += [dataclasses.replace(one, name=str(number)) for one in found]
        targets[str(number)] = target
    num_bytes = 0
    for read in gathered(fills):
        data = source(read.source).read(read.start, read.size_bytes)
        num_bytes += read.size_bytes
        for one in read.fills:
            at = one.start - read.start
            raw = torch.frombuffer(data[at : at + one.size_bytes], dtype=torch.uint8)
            rows = raw.view(DTYPES[one.dtype]).view(one.shape)
            with torch.no_grad():
                targets[one.name][one.ours].copy_(rows[one.theirs])
    return num_bytes
