"""Works out what a rank must read to fill its tensors, however they were cut when saved."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._image import DTYPE_BYTES
from drivetrain_checkpoint._layout import intersect, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from drivetrain_checkpoint._image import Slot
    from drivetrain_checkpoint._layout import Block, Layout, TensorLayout

__all__ = ["Fill", "Read", "digest", "gathered", "plan_fills"]

_READ_BYTES = 32 << 20
_GAP_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Fill:
    """Some rows of a saved block, and where they go.

    Args:
        name: The tensor.
        source: The rank that saved the block.
        start: Where in that rank's image the rows begin.
        dtype: The dtype, as safetensors names it.
        shape: The shape of the rows.
        theirs: What of the rows is wanted.
        ours: Where it goes in this rank's block of the tensor.
    """

    name: str
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
        start: Where in that rank's image they begin.
        size_bytes: How many they are.
        fills: What they fill.
    """

    source: int
    start: int
    size_bytes: int
    fills: tuple[Fill, ...]


def plan_fills(
    layout: Layout,
    entry: TensorLayout,
    wanted: Block,
    slots_of: Callable[[int], Mapping[str, Slot]],
) -> Iterator[Fill]:
    """Yields what fills a block of a tensor, no piece of it larger than a read.

    Args:
        layout: The layout that was saved.
        entry: The tensor in it.
        wanted: The block.
        slots_of: Returns where a rank's tensors lie in its image.
    """
    if not size_of(wanted):
        return
    for source, block in layout.savers(entry, wanted):
        slot = slots_of(source)[entry.name]
        for ours, theirs in intersect(wanted, block):
            if not theirs:  # a single number
                yield Fill(entry.name, source, slot.start, entry.dtype, (), (), ())
                continue
            row = slot.size_bytes // max(1, slot.shape[0])
            step = max(1, _READ_BYTES // max(1, row))
            for first in range(theirs[0].start, theirs[0].stop, step):
                last = min(first + step, theirs[0].stop)
                at = ours[0].start + first - theirs[0].start
                yield Fill(
                    entry.name,
                    source,
                    slot.start + first * row,
                    entry.dtype,
                    (last - first, *slot.shape[1:]),
                    (slice(0, last - first), *theirs[1:]),
                    (slice(at, at + last - first), *ours[1:]),
                )


def gathered(fills: Iterable[Fill]) -> list[Read]:
    """Returns the reads that serve some fills: neighbours are read together."""
    ordered = sorted(fills, key=lambda fill: (fill.source, fill.start))
    reads: list[Read] = []
    held: list[Fill] = []
    end = 0
    for fill in ordered:
        fits = (
            held
            and fill.source == held[0].source
            and fill.start <= end + _GAP_BYTES
            and fill.start + fill.size_bytes - held[0].start <= _READ_BYTES
        )
        if held and not fits:
            reads.append(_read(held, end))
            held = []
        end = max(end if held else 0, fill.start + fill.size_bytes)
        held.append(fill)
    if held:
        reads.append(_read(held, end))
    return reads


def digest(reads: Sequence[Read]) -> str:
    """Returns what is equal on ranks that read the same bytes."""
    plain: Any = [(r.source, r.start, r.size_bytes) for r in reads]
    return hashlib.sha256(repr(plain).encode()).hexdigest()


def _read(fills: Sequence[Fill], end: int) -> Read:
    start = fills[0].start
    return Read(fills[0].source, start, end - start, tuple(fills))
