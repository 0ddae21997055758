"""Plan of a mesh's axes on all ranks: made on one, sent to the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core._data.random_stream import RandomStream
from drivetrain_core._errors import Code, DrivetrainError, PlanError, first_line
from drivetrain_core._model.snapshot import ModelSnapshot
from drivetrain_core._ranks import share
from drivetrain_core.mesh_shape import asks_for_mesh
from drivetrain_core.services._lookup import get_service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from drivetrain_core._choice import Choice
    from drivetrain_core._context import WorldFacts
    from drivetrain_core._program import Program
    from drivetrain_core.services.model_layout import LayoutPlan, ModelLayout

_LIMIT_S = 1800.0


def agreed_layout(
    program: Program,
    model: nn.Module,
    batch: Any,
    choices: Sequence[Choice],
    world: WorldFacts,
) -> LayoutPlan | None:
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
    layout: ModelLayout = get_service("model_layout")

    def find() -> dict[str, Any]:
        loss_of, has_values = program.loss_of, program.weights == "build"
        snapshot = ModelSnapshot(model, *program.held(), values=has_values)
        try:
            with RandomStream(program.seed).in_place():
                return layout.plan(model, batch, loss_of, choices, world.size).to_dict()
        except DrivetrainError:
            raise
        except Exception as error:  # A copy of a program may fail where it does not.
            raise PlanError(
                Code.NOT_APPLICABLE,
                "mesh",
                because=f"planning it for a copy of the model failed: {first_line(error)}",
                fix="use ddp or fsdp, or let loss and forward use the model they are given",
            ) from error
        finally:
            snapshot.restore()

    found = share(find, world, _LIMIT_S, "plan the axes of the mesh")
    return layout.read_plan(found)
