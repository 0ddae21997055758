"""Which axes of a mesh go together, as it is planned and as it is predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core import Code, PlanError

if TYPE_CHECKING:
    from drivetrain_core.mesh_shape import MeshShape


def require_provable(shape: MeshShape) -> None:
    """Refuses axes that are not proven together.

    Raises:
        PlanError: It has experts' ranks beside those of tensor or context.
    """
    if shape.expert > 1 and shape.tensor * shape.context > 1:
        raise PlanError(
            Code.CONFLICT,
            "mesh",
            because=f"expert={shape.expert} is not proven together with tensor or context",
            fix="use expert with pipeline, shard and replicate",
        )


def heads_of_rank(heads: int, context: int) -> int:
    """Returns how many heads a rank attends with, which has all positions then.

    Args:
        heads: Of an attention, on the ranks that share a sequence together.
        context: Ranks that share a sequence.

    Raises:
        PlanError: They have no equal parts.

    Example:
        >>> heads_of_rank(8, 2)
        4
    """
    if heads % context:
        raise PlanError(
            Code.NOT_DIVISIBLE,
            "mesh",
            because=f"context={context} does not divide {heads} attention heads",
            fix=f"use a divisor of {heads}",
        )
    return heads // context
