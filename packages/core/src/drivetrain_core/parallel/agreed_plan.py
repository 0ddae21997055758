"""One plan of a mesh's axes on all ranks: made on one, sent to the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core._ranks import share
from drivetrain_core.parallel.resolve import asks_for_mesh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from drivetrain_core._context import WorldFacts
    from drivetrain_core._optimization import Choice
    from drivetrain_core._program import Program
    from drivetrain_core.parallel.parallel_plan import ParallelPlan

__all__ = ["agreed_plan"]

_LIMIT_S = 1800.0


def agreed_plan(
    program: Program,
    model: nn.Module,
    batch: Any,
    choices: Sequence[Choice],
    world: WorldFacts,
) -> ParallelPlan | None:
    """Returns what each axis does to the model, the same on every rank.

    Args:
        program: The user's program.
        model: Its model as written.
        batch: A global batch.
        choices: The plan that is to be applied.
        world: The ranks.

    Returns:
        The plan of the axes; None where no mesh is asked for.

    Raises:
        PlanError: An axis cannot be used with this model; on every rank.
    """
    if not asks_for_mesh(choices):
        return None
    # Imported here: it takes a second, and most programs ask for no mesh.
    from drivetrain_core.parallel.parallel_plan import ParallelPlan
    from drivetrain_core.parallel.planning import plan_parallel

    def find() -> dict[str, Any]:
        return plan_parallel(program, model, batch, choices, world.size).to_dict()

    found = share(find, world, _LIMIT_S, "plan the axes of the mesh")
    return ParallelPlan.from_dict(found)
