"""Tensor layout: which rank saved which block, as one formula for each tensor.

A layout is the same on all ranks and for any number of them: the global shape of each
tensor, and how it is placed on a mesh of ranks. What a rank holds, and who holds what a
reader wants, are computed from it. Placements are those of DTensor, applied from the
first dimension of the mesh to the last: `R` (replicated), `S0` (split along dimension
0), `S0/2` (split along dimension 0 after a split into two that a later dimension of
the mesh makes: FSDP on top of tensor parallelism), and `S0:8,4,4` or `S0/2:8,4,4` (each of
the sections of dimension 0 is split so by itself: query, key and value in one matrix).
"""

from __future__ import annotations

import itertools
import math
import re
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._errors import CorruptCheckpointError
from drivetrain_checkpoint._fields import are_counts, is_count, is_kind, is_shape
from drivetrain_checkpoint._layout.safetensors_layout import DTYPE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_PLACEMENT = re.compile(r"S(\d{1,2})(?:/(\d{1,9}))?(?::\d{1,18}(?:,\d{1,18})*)?")
_FACTOR = 1024

Range = tuple[int, int]
"""Some places along one dimension: the first, and how many."""

Block = tuple[tuple[Range, ...], ...]
"""For each dimension the ranges whose product is held, in the order of the memory."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks in a grid.

    Args:
        shape: The grid's shape.
        ranks: The ranks in it, the last dimension running fastest.
    """

    shape: tuple[int, ...]
    ranks: tuple[int, ...]

    def coordinate(self, rank: int) -> tuple[int, ...] | None:
        """Returns where a rank stands, or None if it is not in the grid."""
        if rank not in self.ranks:
            return None
        at = self.ranks.index(rank)
        found = []
        for size in reversed(self.shape):
            at, place = divmod(at, size)
            found.append(place)
        return tuple(reversed(found))

    def rank_at(self, coordinate: Sequence[int]) -> int:
        """Returns the rank that stands somewhere."""
        at = 0
        for size, place in zip(self.shape, coordinate, strict=True):
            at = at * size + place
        return self.ranks[at]


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """One tensor, and who saved what of it.

    Args:
        name: Its name.
        dtype: Its dtype, as safetensors names it.
        shape: Its shape over all ranks.
        mesh: The number of its mesh in the layout.
        placements: One for each dimension of the mesh.
        replica: Which of those that hold the same block saved it; they are counted over
            the replicated dimensions of the mesh, the last running fastest.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    mesh: int
    placements: tuple[str, ...]
    replica: int


@dataclass(frozen=True, slots=True)
class Layout:
    """All tensors of a save.

    Args:
        meshes: The meshes that tensors lie on.
        tensors: The tensors, in the order in which each rank saves its blocks.
    """

    meshes: tuple[Mesh, ...]
    tensors: tuple[TensorLayout, ...]

    def to_plain(self) -> dict[str, Any]:
        """Returns the layout as lists and numbers."""
        return {
            "meshes": [[list(m.shape), list(m.ranks)] for m in self.meshes],
            "tensors": [
                [t.name, t.dtype, list(t.shape), t.mesh, list(t.placements), t.replica]
                for t in self.tensors
            ],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], name: str = "the save") -> Layout:
        """Returns the layout that `to_plain` wrote.

        Args:
            plain: What it wrote, or what a file says that it did.
            name: What is said to have it, if it is none.

        Raises:
            CorruptCheckpointError: It is none.
        """
        try:
            meshes = tuple(_mesh(*mesh) for mesh in plain["meshes"])
            tensors = tuple(_tensor(meshes, *one) for one in plain["tensors"])
            if len({one.name for one in tensors}) < len(tensors):
                message = "a tensor is there twice"
                raise ValueError(message)  # noqa: TRY301
        except (KeyError, TypeError, ValueError) as error:
            message = f"{name} has no layout of tensors: {error}"
            raise CorruptCheckpointError(message) from error
        return cls(meshes, tensors)

    @property
    def size_bytes(self) -> int:
        """What the tensors take."""
        return sum(DTYPE_BYTES[t.dtype] * math.prod(t.shape) for t in self.tensors)

    def block(self, tensor: TensorLayout, rank: int) -> Block | None:
        """Returns what a rank saved of a tensor, or None if it saved nothing.

        Example:
            >>> tensor = TensorLayout("w", "F32", (5, 2), 0, ("R", "S0"), 1)
            >>> layout = Layout((Mesh((2, 2), (0, 1, 2, 3)),), (tensor,))
            >>> layout.block(tensor, 3), layout.block(tensor, 1)
            ((((3, 2),), ((0, 2),)), None)
        """
        mesh = self.meshes[tensor.mesh]
        coordinate = mesh.coordinate(rank)
        if coordinate is None or _replica(mesh, tensor, coordinate) != tensor.replica:
            return None
        block = self.held(tensor, rank)
        return block if size_of(block) else None

    def held(self, tensor: TensorLayout, rank: int) -> Block:
        """Returns what a rank holds of a tensor, whoever of the replicas saved it."""
        mesh = self.meshes[tensor.mesh]
        coordinate = mesh.coordinate(rank)
        if coordinate is None:
            return ((),) * max(1, len(tensor.shape))
        block = list(whole_block(tensor.shape))
        for places, place, placement in zip(
            mesh.shape, coordinate, tensor.placements, strict=True
        ):
            if placement != "R":
                dim, factor, sections = _parse(placement)
                block[dim] = _split(block[dim], places, place, factor, sections)
        return tuple(block)

    def savers(
        self, tensor: TensorLayout, wanted: Block
    ) -> Iterator[tuple[int, Block]]:
        """Yields the ranks that saved some of a wanted block, and what each saved.

        The cost grows with how many they are, not with the number of ranks, but for
        splits of the kind `S0/2`.
        """
        mesh = self.meshes[tensor.mesh]
        spare = _replica_places(mesh, tensor)
        found: list[tuple[tuple[int, ...], Block]] = [((), whole_block(tensor.shape))]
        for axis, (places, placement) in enumerate(
            zip(mesh.shape, tensor.placements, strict=True)
        ):
            if placement == "R":
                found = [((*at, spare[axis]), block) for at, block in found]
                continue
            dim, factor, sections = _parse(placement)
            found = [
                ((*at, place), (*block[:dim], part, *block[dim + 1 :]))
                for at, block in found
                for place in _candidates(
                    block[dim], wanted[dim], places, factor, sections
                )
                if _meets(
                    part := _split(block[dim], places, place, factor, sections),
                    wanted[dim],
                )
            ]
        for coordinate, block in found:
            if size_of(block) and all(map(_meets, block, wanted)):
                yield mesh.rank_at(coordinate), block


def _mesh(shape: list[int], ranks: list[int]) -> Mesh:
    """Returns a mesh of plain data.

    Raises:
        ValueError: It is none.
    """
    if not (
        is_shape(shape)
        and are_counts(ranks)
        and math.prod(shape) == len(set(ranks)) == len(ranks) > 0
    ):
        message = f"a mesh must not be {reprlib.repr((shape, ranks))}"
        raise ValueError(message)
    return Mesh(tuple(shape), tuple(ranks))


def _tensor(
    meshes: Sequence[Mesh],
    name: str,
    dtype: str,
    shape: list[int],
    mesh: int,
    placements: list[str],
    replica: int,
) -> TensorLayout:
    """Returns a tensor's layout of plain data, like `_mesh`."""
    is_plain = is_kind(str)(name) and dtype in DTYPE_BYTES and is_shape(shape)
    if is_plain and is_count(mesh) and mesh < len(meshes) and is_count(replica):
        grid = meshes[mesh]
        num_replicas = 1
        for size, placement in zip(grid.shape, placements, strict=True):
            if placement == "R":
                num_replicas *= size
            elif not (found := _PLACEMENT.fullmatch(placement)):
                break
            else:
                dim, factor = int(found[1]), int(found[2] or 1)
                if dim >= len(shape) or not 0 < factor <= max(_FACTOR, len(grid.ranks)):
                    break
        else:
            if replica < num_replicas:
                return TensorLayout(
                    name, dtype, tuple(shape), mesh, tuple(placements), replica
                )
    about = (name, dtype, shape, mesh, placements, replica)
    message = f"a tensor must not be {reprlib.repr(about)}"
    raise ValueError(message)


def whole_block(shape: Iterable[int]) -> Block:
    """Returns the block that is all of a tensor.

    Example:
        >>> whole_block((2, 3))
        (((0, 2),), ((0, 3),))
    """
    return tuple(((0, size),) for size in shape)


def shape_of(block: Iterable[tuple[Range, ...]]) -> tuple[int, ...]:
    """Returns the shape of a block in memory.

    Example:
        >>> shape_of((((0, 2), (4, 1)), ((0, 5),)))
        (3, 5)
    """
    return tuple(sum(length for _, length in ranges) for ranges in block)


def size_of(block: Iterable[tuple[Range, ...]]) -> int:
    """Returns how many elements a block has.

    Example:
        >>> size_of((((0, 2), (4, 1)), ((0, 5),)))
        15
    """
    return math.prod(shape_of(block))


def intersect(
    ours: Block, theirs: Block
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Yields the common parts of two blocks, as slices of each one's memory.

    Example:
        >>> list(intersect((((2, 4),),), (((0, 3),),)))
        [((slice(0, 1, None),), (slice(2, 3, None),))]
        >>> list(intersect((((0, 1), (2, 1)),), (((1, 2),),)))
        [((slice(1, 2, None),), (slice(1, 2, None),))]
    """
    common = [list(_common(a, b)) for a, b in zip(ours, theirs, strict=True)]
    for parts in itertools.product(*common):
        yield tuple(part[0] for part in parts), tuple(part[1] for part in parts)


def _common(ours: Sequence[Range], theirs: Sequence[Range]) -> Iterator[Any]:
    at = 0
    for start, length in ours:
        other_at = 0
        for other, other_length in theirs:
            first = max(start, other)
            last = min(start + length, other + other_length)
            if first < last:
                yield (
                    slice(at + first - start, at + last - start),
                    slice(other_at + first - other, other_at + last - other),
                )
            other_at += other_length
        at += length


def _parse(placement: str) -> tuple[int, int, tuple[int, ...]]:
    """Returns the dimension, into how many it was split before, and its sections."""
    split, _, sizes = placement.removeprefix("S").partition(":")
    dim, _, factor = split.partition("/")
    sections = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    return int(dim), int(factor or 1), sections


def _chunk(size: int, places: int, place: int) -> Range:
    """Returns what `torch.chunk` gives at a place, empty at the end if it gives less."""
    step = -(-size // places)
    first = min(step * place, size)
    return first, min(step, size - first)


def _split(
    ranges: tuple[Range, ...],
    places: int,
    place: int,
    factor: int,
    sections: tuple[int, ...] = (),
) -> tuple[Range, ...]:
    """Returns the ranges that a place gets of these.

    Example:
        >>> _split(((0, 8),), 2, 1, 1, (4, 2, 2))
        ((2, 2), (5, 1), (7, 1))
    """
    if sections:
        ends = itertools.accumulate(sections)
        inside = (
            _within(ranges, end - size, end)
            for size, end in zip(sections, ends, strict=True)
        )
        split = (_split(part, places, place, factor) for part in inside)
        return _merged(itertools.chain(*split))
    total = sum(length for _, length in ranges)
    parts: list[Range] = []
    for index in range(factor):
        outer, outer_length = _chunk(total, factor, index)
        inner, length = _chunk(outer_length, places, place)
        if length:
            parts += _take(ranges, outer + inner, length)
    return _merged(parts)


def _within(ranges: Sequence[Range], begin: int, end: int) -> tuple[Range, ...]:
    """Returns what of some ranges lies between two places."""
    cut = ((max(at, begin), min(at + length, end)) for at, length in ranges)
    return tuple((first, last - first) for first, last in cut if first < last)


def _take(ranges: Sequence[Range], at: int, length: int) -> Iterator[Range]:
    """Yields the ranges of some places in the concatenation of ranges."""
    for start, size in ranges:
        first, last = max(at, 0), min(at + length, size)
        if first < last:
            yield start + first, last - first
        at -= size


def _merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Returns ranges with those joined that follow each other."""
    found: list[Range] = []
    for start, length in ranges:
        if found and sum(found[-1]) == start:
            found[-1] = (found[-1][0], found[-1][1] + length)
        else:
            found.append((start, length))
    return tuple(found)


def _candidates(
    ranges: tuple[Range, ...],
    wanted: tuple[Range, ...],
    places: int,
    factor: int,
    sections: tuple[int, ...],
) -> Iterable[int]:
    """Returns the places that may get some of what is wanted, few if they are few."""
    if len(ranges) != 1 or factor != 1 or sections or not wanted:
        return range(places)
    start, size = ranges[0]
    step = -(-size // places)
    first = min(at for at, _ in wanted) - start
    last = max(at + length for at, length in wanted) - start
    if step == 0 or last <= 0 or first >= size:
        return ()
    return range(max(first, 0) // step, min((min(last, size) - 1) // step + 1, places))


def _meets(ranges: Sequence[Range], wanted: Sequence[Range]) -> bool:
    return any(max(a, b) < min(a + n, b + m) for a, n in ranges for b, m in wanted)


def _replica(mesh: Mesh, tensor: TensorLayout, coordinate: Sequence[int]) -> int:
    """Returns which of those that hold the same block stands at a coordinate."""
    number = 0
    for size, place, placement in zip(
        mesh.shape, coordinate, tensor.placements, strict=True
    ):
        if placement == "R":
            number = number * size + place
    return number


def _replica_places(mesh: Mesh, tensor: TensorLayout) -> dict[int, int]:
    """Returns where the replica that saved stands in each replicated dimension."""
    left, places = tensor.replica, {}
    for axis in reversed(range(len(mesh.shape))):
        if tensor.placements[axis] == "R":
            left, places[axis] = divmod(left, mesh.shape[axis])
    return places
