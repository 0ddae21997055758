"""Read plan: the bytes that a rank reads to fill its tensors, however they were cut."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_checkpoint._errors import CorruptCheckpointError
from drivetrain_checkpoint._layout.safetensors_layout import DTYPE_BYTES
from drivetrain_checkpoint._layout.tensor_layout import intersect, shape_of, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from drivetrain_checkpoint._layout.safetensors_layout import Slot
    from drivetrain_checkpoint._layout.tensor_layout import Block, Layout, TensorLayout

_READ_BYTES = 32 << 20
_GAP_BYTES = 64 << 10


class Wanted(NamedTuple):
    """A block of a tensor that is wanted, and where it goes.

    Args:
        tensor: The tensor, as it was saved.
        block: The block.
        target: What is written in place; of the block's shape, any dtype and device.
        is_sharded: Whether other ranks may want another block.
    """

    tensor: TensorLayout
    block: Block
    target: Tensor
    is_sharded: bool = False


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Some rows of a saved block, and where they go.

    Args:
        target: The number of the wanted block that they are part of.
        source: The rank that saved the block.
        start: Where in that rank's file the rows begin.
        dtype: The dtype, as safetensors names it.
        shape: The shape of the rows.
        theirs: What of the rows is wanted.
        ours: Where it goes in the wanted block.
    """

    target: int
    source: int
    start: int
    dtype: str
    shape: tuple[int, ...]
    theirs: tuple[slice, ...]
    ours: tuple[slice, ...]

    @property
    def size_bytes(self) -> int:
        """How much is read."""
        return DTYPE_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Read:
    """A run of bytes that is read at once.

    Args:
        source: The rank that saved them.
        start: Where in that rank's file they begin.
        size_bytes: How many they are.
        copies: Where they go.
    """

    source: int
    start: int
    size_bytes: int
    copies: tuple[BlockCopy, ...]


def plan_copies(
    layout: Layout,
    wanted: Iterable[Wanted],
    slots_of: Callable[[int], Mapping[str, Slot]],
) -> list[BlockCopy]:
    """Returns what fills some blocks of tensors, no piece of it larger than a read.

    Args:
        layout: The layout that was saved.
        wanted: The blocks.
        slots_of: Returns where a rank's tensors lie in its file.

    Raises:
        CorruptCheckpointError: What was saved does not cover a block.
    """
    found: list[BlockCopy] = []
    for number, (tensor, block, *_) in enumerate(wanted):
        copies = list(_copies(layout, number, tensor, block, slots_of))
        covered = sum(math.prod(s.stop - s.start for s in one.theirs) for one in copies)
        if covered != size_of(block):
            message = (
                f"the checkpoint has {covered:,} of the {size_of(block):,} elements of "
                f"{tensor.name} that this rank needs"
            )
            raise CorruptCheckpointError(message)
        found += copies
    return found


def coalesced_reads(copies: Iterable[BlockCopy]) -> list[Read]:
    """Returns the reads that serve some copies: neighbours are read together."""
    groups: list[list[BlockCopy]] = []
    end = 0
    for copy in sorted(copies, key=lambda copy: (copy.source, copy.start)):
        first = groups[-1][0] if groups else None
        if (
            first is None
            or copy.source != first.source
            or copy.start > end + _GAP_BYTES
            or copy.start + copy.size_bytes - first.start > _READ_BYTES
        ):
            groups.append([])
            end = 0
        groups[-1].append(copy)
        end = max(end, copy.start + copy.size_bytes)
    return [_read(group) for group in groups]


def digest(reads: Sequence[Read]) -> str:
    """Returns what is equal on ranks that read the same bytes."""
    plain: Any = [(r.source, r.start, r.size_bytes) for r in reads]
    return hashlib.sha256(repr(plain).encode()).hexdigest()


def _copies(
    layout: Layout,
    target: int,
    tensor: TensorLayout,
    wanted: Block,
    slots_of: Callable[[int], Mapping[str, Slot]],
) -> Iterator[BlockCopy]:
    """Yields what fills one block."""
    if not size_of(wanted):
        return
    for source, block in layout.savers(tensor, wanted):
        slot = slots_of(source).get(tensor.name)
        if slot is None or (slot.dtype, slot.shape) != (tensor.dtype, shape_of(block)):
            message = (
                f"rank {source} has not saved its block of {tensor.name}, "
                f"{tensor.dtype} {list(shape_of(block))}, but {slot or 'nothing'}"
            )
            raise CorruptCheckpointError(message)
        for ours, theirs in intersect(wanted, block):
            if not theirs:  # a single number
                yield BlockCopy(target, source, slot.start, tensor.dtype, (), (), ())
                continue
            row = slot.size_bytes // max(1, slot.shape[0])
            step = max(1, _READ_BYTES // max(1, row))
            for first in range(theirs[0].start, theirs[0].stop, step):
                last = min(first + step, theirs[0].stop)
                at = ours[0].start + first - theirs[0].start
                yield BlockCopy(
                    target,
                    source,
                    slot.start + first * row,
                    tensor.dtype,
                    (last - first, *slot.shape[1:]),
                    (slice(0, last - first), *theirs[1:]),
                    (slice(at, at + last - first), *ours[1:]),
                )


def _read(copies: Sequence[BlockCopy]) -> Read:
    start = copies[0].start
    end = max(copy.start + copy.size_bytes for copy in copies)
    return Read(copies[0].source, start, end - start, tuple(copies))
