"""Which groups a world has, and in which order each rank makes its own: pure."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedGroup:
    """One group of ranks.

    Args:
        name: Of its dimension, or of several as `data+tensor`.
        index: Which of the groups of that name, from 0.
        ranks: Its ranks in the world, ascending.
    """

    name: str
    index: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPlan:
    """The groups of a mesh of ranks; `plan_groups` makes it.

    All groups of a name together hold each rank once. So all ranks make the same number
    of groups, in the order of the names: a rank that waits for others waits for such as
    are at an earlier name or the same one, and the earliest group can always be
    completed. No order of events deadlocks, and nobody waits for the whole world.

    Args:
        world_size: The number of ranks.
        dims: Each dimension's size; the last one's ranks are neighbours.
        names: The groups that each rank is in, in the order in which it makes them.
    """

    world_size: int
    dims: tuple[tuple[str, int], ...]
    names: tuple[str, ...]
    _parts: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Notes where the ranks of each group lie, relative to its first."""
        for name in self.names:
            self._parts[name] = _offsets(self.dims, name.split("+"))

    def groups_of(self, rank: int) -> tuple[PlannedGroup, ...]:
        """Returns the groups of a rank, in the order in which it makes them.

        Raises:
            DistributedError: There is no such rank.
        """
        if not 0 <= rank < self.world_size:
            message = f"rank {rank} is not in a world of {self.world_size}"
            raise DistributedError(message)
        return tuple(self._group_of(rank, name) for name in self.names)

    def all_groups(self) -> Iterator[PlannedGroup]:
        """Yields every group of the world, by name and then by its first rank."""
        for name in self.names:
            firsts = _offsets(self.dims, _others(self.dims, name.split("+")))
            for index, first in enumerate(firsts):
                ranks = tuple(first + offset for offset in self._parts[name])
                yield PlannedGroup(name=name, index=index, ranks=ranks)

    def __str__(self) -> str:
        """What must be the same on all ranks."""
        return json.dumps([self.world_size, self.dims, self.names])

    def _group_of(self, rank: int, name: str) -> PlannedGroup:
        mine, index, stride = name.split("+"), 0, self.world_size
        first = rank
        for dim, size in self.dims:
            stride //= size
            place = rank // stride % size
            if dim in mine:
                first -= place * stride
            else:
                index = index * size + place
        ranks = tuple(first + offset for offset in self._parts[name])
        return PlannedGroup(name=name, index=index, ranks=ranks)


def plan_groups(
    world_size: int,
    dims: Mapping[str, int],
    *,
    together: Sequence[Sequence[str]] = (),
) -> GroupPlan:
    """Returns the groups of a world whose ranks form a mesh.

    Args:
        world_size: The number of ranks.
        dims: Each dimension's name and size, from the outermost to the innermost, whose
            ranks are neighbours, as in `torch.distributed.init_device_mesh`.
        together: Further groups over several dimensions, such as `("data", "tensor")`,
            which is then called `data+tensor`.

    Raises:
        DistributedError: The sizes do not multiply to the world size, or a name is not
            usable.

    Example:
        >>> plan = plan_groups(8, {"pipeline": 2, "data": 2, "tensor": 2})
        >>> [(group.name, group.ranks) for group in plan.groups_of(5)]
        [('pipeline', (1, 5)), ('data', (5, 7)), ('tensor', (4, 5))]
    """
    sizes = tuple(dims.items())
    shown = " x ".join(f"{size} {name}" for name, size in sizes) or "nothing"
    for name, size in sizes:
        if not name or "+" in name or size < 1:
            message = (
                "each dimension needs a name without '+' and a size of at least 1, got "
                f"{name!r}: {size}"
            )
            raise DistributedError(message)
    product = math.prod(size for _, size in sizes)
    if product != world_size:
        message = (
            f"the dimensions must multiply to the world size: {shown} = {product}, but "
            f"there are {world_size} ranks"
        )
        raise DistributedError(message)
    unions = []
    for union in together:
        wrong = [name for name in union if name not in dims]
        if wrong or len(set(union)) != len(union) or len(union) < 2:
            message = (
                "`together` must name two or more different dimensions of "
                f"{', '.join(dims)}, got {tuple(union)!r}"
            )
            raise DistributedError(message)
        unions.append("+".join(name for name in dims if name in union))
    names = (*dims, *dict.fromkeys(unions))
    return GroupPlan(world_size=world_size, dims=sizes, names=names)


def _others(dims: tuple[tuple[str, int], ...], mine: Sequence[str]) -> list[str]:
    return [name for name, _ in dims if name not in mine]


def _offsets(dims: tuple[tuple[str, int], ...], mine: Sequence[str]) -> tuple[int, ...]:
    """Returns the ranks that differ from rank 0 in the given dimensions only."""
    offsets, stride = [0], math.prod(size for _, size in dims)
    for name, size in dims:
        stride //= size
        if name in mine:
            offsets = [
                first + place * stride for first in offsets for place in range(size)
            ]
    return tuple(offsets)
