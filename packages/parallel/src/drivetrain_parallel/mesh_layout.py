"""What a rank has of a model over a mesh: the handle by which core asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.extending import repeated_blocks
from drivetrain_core.services.model_layout import DividedLoss
from drivetrain_parallel.averaging import average_copies, average_shards
from drivetrain_parallel.clip import clip_grad_norm, counted_parts
from drivetrain_parallel.meta.materialize import allocate, fill
from drivetrain_parallel.pipeline import PipelineStep
from drivetrain_parallel.pipeline.stage_list import StageList
from drivetrain_parallel.state.canonical import canonical_names_of
from drivetrain_parallel.state.model_entry import ModelEntry
from drivetrain_parallel.state.optimizer_entry import OptimizerEntry
from drivetrain_parallel.state.parallelized_model import ParallelizedModel
from drivetrain_parallel.state.state_dict import load_mesh_state_dict, mesh_state_dict
from drivetrain_parallel.tensor import (
    canonical_slices,
    has_split_loss,
    local_loss,
    loss_context,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import Tensor, nn

    from drivetrain_core import TrainingState
    from drivetrain_core.services.model_layout import Placement
    from drivetrain_core.services.state_entry import StateEntry
    from drivetrain_parallel.device_mesh import ParallelMesh
    from drivetrain_parallel.parallel_plan import ParallelPlan
    from drivetrain_parallel.pipeline import StageModule
    from drivetrain_parallel.state.parallelized_model import WholeModel


class MeshLayout:
    """A plan of the axes, applied to the model of a program under construction.

    Args:
        state: The program; the layout asks it for the module, the blocks and the groups
            of the optimizer as they are then.
        plan: What each axis does to the model.
        mesh: The ranks along the axes.
        whole: What the model held as written.
        meta_model: The model of that moment on the meta device, if it had no weights.

    Attributes:
        plan: As given.
        mesh: As given.
        stages: This rank's stages of a pipeline; empty without one.
    """

    def __init__(
        self,
        state: TrainingState,
        plan: ParallelPlan,
        mesh: ParallelMesh,
        whole: WholeModel,
        meta_model: nn.Module | None = None,
    ) -> None:
        """Has no stages yet."""
        self.plan, self.mesh = plan, mesh
        self.stages: list[StageModule] = []
        self._state, self._whole, self._meta_model = state, whole, meta_model
        self._counted: Callable[[Tensor], float] | None = None

    @property
    def is_staged(self) -> bool:
        """Returns whether this rank has stages of a pipeline."""
        return bool(self.stages)

    def models(self) -> list[nn.Module]:
        """Returns the module, or one for each stage of this rank."""
        return [stage.model for stage in self.stages] or [self._state.module]

    def owned(self) -> nn.Module:
        """Returns one module that holds all of them, under the names of the model."""
        models = self.models()
        return models[0] if len(models) == 1 else StageList(models)

    def units(self) -> list[tuple[nn.Module, list[nn.Module]]]:
        """Returns what data parallel wraps: each root with the blocks inside it."""
        if self.stages:
            return [(stage, list(stage.blocks)) for stage in self.stages]
        module = self._state.module
        return [(module, repeated_blocks(module, self._state.context.model.blocks))]

    def parameter_names(self) -> dict[str, str]:
        """Returns what the model as written calls each parameter that is here."""
        return canonical_names_of(self.models(), self.plan)

    def placements(self) -> dict[str, Placement]:
        """Returns which block of the model as written each parameter here is."""
        found: dict[str, Placement] = {}
        for model in self.models():
            found.update(canonical_slices(model))
        return found

    def ties_of_stages(self) -> tuple[tuple[str, ...], ...]:
        """Returns the groups of names that share a parameter across stages."""
        pipeline = self.plan.pipeline
        shared = () if pipeline is None else pipeline.shared
        return tuple(tuple(dict.fromkeys(one.names.values())) for one in shared)

    def average_copies(self) -> Callable[[bool], None] | None:
        """Keeps a copy on each rank of the data axes, and averages their gradients."""
        return average_copies(self.mesh, self.units(), self._expert_layers())

    def average_shards(
        self, *, reshard: bool, **options: Any
    ) -> Callable[[bool], None] | None:
        """Shards what is here over the data axes, as `fully_shard` does."""
        units, experts = self.units(), self._expert_layers()
        return average_shards(self.mesh, units, experts, reshard=reshard, **options)

    def _expert_layers(self) -> list[nn.Module]:
        if self.plan.expert is None:
            return []
        here = {n: m for model in self.models() for n, m in model.named_modules()}
        return [here[name] for name in self.plan.expert.layers if name in here]

    def materialize(
        self, weights: str | Callable[[nn.Module], object], seed: int
    ) -> None:
        """Gives what was built without weights its values, once it is sharded.

        Raises:
            ProgramError: Nothing sets one of the parameters.
        """
        allocate(self.models(), self._state.device)
        if weights == "restore":
            return
        assert self._meta_model is not None
        given = weights if callable(weights) else None
        device = self._state.device
        fill(self.parts(), self._meta_model, device, seed=seed, given=given)

    def pipeline(self) -> PipelineStep | None:
        """Returns what drives the stages; None without a pipeline."""
        if not self.stages:
            return None
        group = self.mesh.group("pipeline")
        assert group is not None
        assert self.plan.pipeline is not None
        schedule = self._state.planned_config("schedule").get("kind", "1f1b")
        return PipelineStep(
            self.stages,
            self.plan.pipeline,
            schedule=str(schedule),
            group=group,
            device=self._state.device,
        )

    def divided_loss(self) -> DividedLoss | None:
        """Returns how a loss is taken from shards of the output; None where it is whole."""
        plan = self.plan.tensor
        if plan is None or not has_split_loss(plan):
            return None
        return DividedLoss(local_loss, lambda: loss_context(plan))

    def clip_grad_norm(
        self, parameters: Sequence[torch.nn.Parameter], max_norm: float
    ) -> Tensor:
        """Scales gradients to a total norm over all ranks, and returns the norm before."""
        if self._counted is None:
            self._counted = counted_parts(self.mesh, self.plan, self.stages)
        return clip_grad_norm(parameters, max_norm, counted=self._counted)

    def parts(self) -> ParallelizedModel:
        """Returns what this rank has of the model, by canonical names."""
        return ParallelizedModel(
            self.models(),
            self._whole,
            stages=[stage.stage_index for stage in self.stages],
            pipeline=self.plan.pipeline,
        )

    def entries(self, optimizer: torch.optim.Optimizer) -> dict[str, StateEntry]:
        """Returns the entries `model` and `optimizer` of a checkpoint."""
        return dict(zip(("model", "optimizer"), self._entries(optimizer), strict=True))

    def state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Returns `model` and `optimizer` by canonical names, sharing memory.

        Raises:
            NamesError: The optimizer's state has no names by parameter.
        """
        return mesh_state_dict(*self._entries(optimizer))

    def load_state_dict(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Takes over what `state_dict` gave, on this mesh or another.

        Raises:
            CheckpointError: It does not fit; nothing has been changed.
        """
        load_mesh_state_dict(*self._entries(optimizer), state)

    def _entries(
        self, optimizer: torch.optim.Optimizer
    ) -> tuple[ModelEntry, OptimizerEntry]:
        model = ModelEntry(self.parts())
        groups = [group.names for group in self._state.optimizer_source.groups]
        return model, OptimizerEntry(optimizer, model, groups)
