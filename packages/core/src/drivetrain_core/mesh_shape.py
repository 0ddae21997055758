"""The shape of a mesh of ranks: how many there are along each axis.

The axes stand from the slowest to the fastest: ranks that differ only along the last
one are neighbours, on one node where that is possible. Along `tensor` the most is said
in a step, along `pipeline` the least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_core._errors import Code, PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from drivetrain_core._choice import Choice

__all__ = ["AXES", "DATA_AXES", "MeshShape", "asks_for_mesh", "data_part", "mesh_of"]

DATA_AXES = ("replicate", "shard", "expert")
"""The axes along which ranks have different samples."""

AXES = ("pipeline", *DATA_AXES, "context", "tensor")
"""All axes, from the slowest to the fastest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshShape:
    """How many ranks there are along each axis.

    Args:
        pipeline: Stages, each with its own consecutive blocks of the model.
        replicate: Copies of the model, whose gradients are averaged.
        shard: Ranks that share one copy: parameters, gradients and optimizer state.
        expert: Ranks that share the experts of a mixture, with samples of their own.
        context: Ranks that share the sequence of each sample.
        tensor: Ranks that share each matrix.

    Raises:
        PlanError: A number is below one.

    Example:
        >>> shape = MeshShape(pipeline=2, shard=2, tensor=2)
        >>> shape.size, shape.data_size
        (8, 2)
        >>> shape.coordinates(5)["pipeline"], shape.coordinates(5)["tensor"]
        (1, 1)
        >>> print(shape)
        pipeline=2 shard=2 tensor=2
    """

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    expert: int = 1
    context: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        """Checks that there is a rank along every axis."""
        for axis, number in self.items():
            if type(number) is not int or number < 1:
                raise PlanError(
                    Code.CONFIG,
                    "mesh",
                    because=f"{axis} must be an integer of at least 1, got {number!r}",
                    fix="use 1 where an axis is not wanted",
                )

    @property
    def size(self) -> int:
        """Returns the number of ranks."""
        return math.prod(number for _, number in self.items())

    @property
    def data_size(self) -> int:
        """Returns how many parts a global batch is split into over the ranks."""
        return self.replicate * self.shard * self.expert

    def items(self) -> Iterator[tuple[str, int]]:
        """Yields each axis and the number of ranks along it, the slowest first."""
        for axis in AXES:
            yield axis, getattr(self, axis)

    def used(self) -> dict[str, int]:
        """Returns the axes with more than one rank, the slowest first."""
        return {axis: number for axis, number in self.items() if number > 1}

    def coordinates(self, rank: int) -> dict[str, int]:
        """Returns where a rank lies along each axis.

        Args:
            rank: From 0 to `size - 1`.

        Raises:
            ValueError: There is no such rank.
        """
        if not 0 <= rank < self.size:
            message = f"rank must be from 0 to {self.size - 1}, got {rank}"
            raise ValueError(message)
        found = {}
        for axis, number in reversed(list(self.items())):
            rank, found[axis] = divmod(rank, number)
        return {axis: found[axis] for axis in AXES}

    def data_rank(self, rank: int) -> int:
        """Returns which part of a global batch a rank reads.

        Example:
            >>> [MeshShape(pipeline=2, shard=2).data_rank(rank) for rank in range(4)]
            [0, 1, 0, 1]
        """
        place = self.coordinates(rank)
        part = 0
        for axis in DATA_AXES:
            part = part * getattr(self, axis) + place[axis]
        return part

    def __str__(self) -> str:
        """Returns the axes that are used, `one rank` if none is."""
        return " ".join(f"{k}={v}" for k, v in self.used().items()) or "one rank"

    @classmethod
    def of(cls, numbers: Mapping[str, object], world_size: int) -> MeshShape:
        """Returns the shape for a number of ranks, one axis of data filled in.

        Where neither `replicate` nor `shard` is given (or is None), `shard` takes what
        the others leave; where one of them is None, that one does.

        Args:
            numbers: Ranks along each axis that is given; None where it is left open.
            world_size: Ranks in all.

        Raises:
            PlanError: The axes do not multiply to the number of ranks, or one is unknown.

        Example:
            >>> print(MeshShape.of({"tensor": 2, "pipeline": 2}, 8))
            pipeline=2 shard=2 tensor=2
        """
        given = {axis: n for axis, n in numbers.items() if n is not None}
        unknown = [axis for axis in given if axis not in AXES]
        if unknown:
            raise PlanError(
                Code.CONFIG,
                "mesh",
                because=f"there is no axis {unknown[0]!r}",
                fix=f"the axes are {', '.join(AXES)}",
            )
        open_axis = next((a for a in ("shard", "replicate") if a not in given), None)
        shape = cls(**given)  # type: ignore[arg-type]
        if open_axis is not None and world_size % shape.size == 0:
            shape = cls(**given, **{open_axis: world_size // shape.size})  # type: ignore[arg-type]
        if shape.size != world_size:
            raise PlanError(
                Code.NOT_DIVISIBLE,
                "mesh",
                because=f"{shape} takes {shape.size} ranks or a multiple of them, and "
                f"there are {world_size}"
                if open_axis is not None
                else f"{shape} takes {shape.size} ranks, and there are {world_size}",
                fix=f"use axes whose product is {world_size}, or divides it where "
                "shard or replicate is left open",
            )
        return shape


def asks_for_mesh(choices: Sequence[Choice]) -> bool:
    """Returns whether a plan names a mesh."""
    return any(choice.name == "mesh" for choice in choices)


def data_part(choices: Sequence[Choice], world_size: int, rank: int) -> tuple[int, int]:
    """Returns how many parts a plan makes of a global batch for the ranks, and this one's.

    Example:
        >>> from drivetrain_core import Choice
        >>> data_part([Choice("mesh", {"tensor": 2})], 4, 3)
        (2, 1)
        >>> data_part([], 4, 3)
        (4, 3)
    """
    if not asks_for_mesh(choices):
        return world_size, rank
    shape = mesh_of(choices, world_size)
    return shape.data_size, shape.data_rank(rank)


def mesh_of(choices: Sequence[Choice], world_size: int) -> MeshShape:
    """Returns how many ranks there are along each axis.

    `mesh` says it for the axes of the model. The ranks that they leave read different
    samples: under `ddp` each has a copy of the model, under `fsdp` they share one, or
    one a group where that or the mesh gives the size of a group.

    Args:
        choices: Those of a plan.
        world_size: Ranks in all.

    Raises:
        PlanError: The axes do not fit the ranks, or what averages the gradients
            contradicts them.

    Example:
        >>> from drivetrain_core._choice import Choice
        >>> mesh = Choice("mesh", {"tensor": 2})
        >>> print(mesh_of([mesh, Choice("fsdp", {"zero": 3})], 8))
        shard=4 tensor=2
        >>> print(mesh_of([mesh, Choice("ddp", {})], 8))
        replicate=4 tensor=2
    """
    configs: dict[str, Any] = {choice.name: choice.config for choice in choices}
    given = {a: n for a, n in configs.get("mesh", {}).items() if a in AXES and n}
    group = configs.get("fsdp", {}).get("shard_size")
    data: dict[str, int | None] = {a: given.get(a) for a in ("replicate", "shard")}
    if "fsdp" in configs and group:
        if data["shard"] not in (None, group):
            msg = f"the mesh has shard={data['shard']} and fsdp has shard_size={group}"
            raise _conflict(msg, "give one of them")
        data["shard"] = group
    if "ddp" in configs:
        if data["shard"] not in (None, 1):
            msg = f"the mesh has shard={data['shard']}, and ddp shards nothing"
            raise _conflict(msg, 'use "fsdp", or leave ddp out')
        data["shard"] = 1
    model = {a: n for a, n in given.items() if a not in data}
    rest, over = divmod(world_size, math.prod(model.values()))
    known = math.prod(n for n in data.values() if n)
    if not over and rest % known == 0:
        # What is left goes to the axis that is open, shards first.
        for axis in ("shard", "replicate"):
            if data[axis] is None:
                data[axis] = rest // known
                known = rest
    # An axis that is still open is what the error of axes that do not fit tells of.
    return MeshShape.of({**model, **data}, world_size)


def _conflict(because: str, fix: str) -> PlanError:
    return PlanError(Code.CONFLICT, "mesh", because=because, fix=fix)
