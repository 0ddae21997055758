"""The mesh that the choices of a plan ask for, on so many ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from drivetrain_core._errors import Code, PlanError
from drivetrain_core.parallel.mesh_shape import AXES, MeshShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_core._optimization import Choice

__all__ = ["asks_for_mesh", "mesh_of"]


def asks_for_mesh(choices: Sequence[Choice]) -> bool:
    """Returns whether a plan names a mesh."""
    return any(choice.name == "mesh" for choice in choices)


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
        >>> from drivetrain_core._optimization import Choice
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
            raise _conflict(
                msg,
                "give one of them",
            )
        data["shard"] = group
    if "ddp" in configs:
        if data["shard"] not in (None, 1):
            msg = f"the mesh has shard={data['shard']}, and ddp shards nothing"
            raise _conflict(
                msg,
                'use "fsdp", or leave ddp out',
            )
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
