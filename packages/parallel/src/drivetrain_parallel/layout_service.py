"""The service `model_layout`: plans of a mesh, made, read and ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_parallel.cost.mesh_order import rank_meshes
from drivetrain_parallel.meta.meta_model import build_meta_model, require_meta_model
from drivetrain_parallel.parallel_plan import ParallelPlan
from drivetrain_parallel.planning import plan_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from drivetrain_core import Choice, Context
    from drivetrain_core.services.model_layout import DeviceRates, MeshRanking

    LossOf = Callable[[nn.Module, Any], Tensor]


class MeshLayouts:
    """Plans how a model is laid over a mesh of ranks."""

    def plan(
        self,
        model: nn.Module,
        batch: Any,
        loss_of: LossOf,
        choices: Sequence[Choice],
        world_size: int,
    ) -> ParallelPlan:
        """Returns what each axis does to the model; proven in this process.

        Raises:
            PlanError: An axis cannot be used with this model, and why.
        """
        return plan_parallel(model, batch, loss_of, choices, world_size)

    def read_plan(self, data: Mapping[str, Any]) -> ParallelPlan:
        """Returns the plan that its `to_dict` wrote."""
        return ParallelPlan.from_dict(data)

    def rank_meshes(
        self,
        meshes: Sequence[Choice],
        model: nn.Module,
        batch: Any,
        loss_of: LossOf,
        context: Context,
        rates: DeviceRates,
    ) -> MeshRanking:
        """Returns which meshes are worth a trial, by what a step on each would take."""
        return rank_meshes(meshes, model, batch, loss_of, context, rates)

    def build_meta_model(self, factory: Callable[[], object]) -> object:
        """Returns what a factory builds, with parameters on the meta device.

        Raises:
            ProgramError: It needs the values of its weights.
        """
        return build_meta_model(factory)

    def check_meta_model(
        self, model: nn.Module, weights: str | Callable[[nn.Module], object]
    ) -> None:
        """Refuses a model that has values already, or whose weights cannot come as asked.

        Raises:
            ProgramError: It is such a model.
        """
        require_meta_model(model, weights)
