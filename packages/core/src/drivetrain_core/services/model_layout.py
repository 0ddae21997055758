"""Layout of a model over a mesh of ranks: planned on one rank, applied on all.

A plan names a mesh; what its axes do to a model is the business of the package that
provides `model_layout`. Its optimization `mesh` puts an `AppliedLayout` into the
state that is being built, and core asks that wherever a mesh makes a difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, runtime_checkable

from drivetrain_core._errors import MissingLibraryError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor, nn

    from drivetrain_core._choice import Choice
    from drivetrain_core._context import Context
    from drivetrain_core._plan import Rejected
    from drivetrain_core.mesh_shape import MeshShape
    from drivetrain_core.services.state_entry import StateEntry

    LossOf = Callable[[nn.Module, Any], Tensor]
    Sync = Callable[[bool], None]


class LayoutPlan(Protocol):
    """What each axis of a mesh does to one model, as plain data."""

    @property
    def shape(self) -> MeshShape:
        """The mesh."""

    def explain(self) -> list[tuple[str, str]]:
        """Returns what each axis does to the model: the axis, and what lies there."""

    def to_dict(self) -> dict[str, Any]:
        """Returns it in a form that JSON can write."""

    def fingerprint(self) -> str:
        """Returns a hash of all of it, which ranks compare."""


class Placement(Protocol):
    """A block of a tensor of the model as written.

    Attributes:
        name: What that tensor is called there.
        global_shape: Its shape there.
        offset: Where the block begins in it.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def global_shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def offset(self) -> tuple[int, ...]: ...  # noqa: D102


class PipelinePasses(Protocol):
    """Forwards and backwards of all stages of a pipeline."""

    def run(self, micro_batches: Sequence[Any], weights: Sequence[float]) -> Tensor:
        """Adds the gradient of the weighted losses to `.grad`, and returns their sum.

        Raises:
            PlanError: The micro-batches cannot be run; nothing has, on any rank.
        """


class DividedLoss(NamedTuple):
    """A loss that is computed from shards of the model's output.

    Attributes:
        whole: Returns a loss as a plain tensor, equal on all ranks of the axis.
        context: Inside it forward, loss and backward run.
    """

    whole: Callable[[Tensor], Tensor]
    context: Callable[[], AbstractContextManager[None]]


class AppliedLayout(Protocol):
    """What this rank has of a model over a mesh. Not thread-safe: one loop drives it."""

    @property
    def plan(self) -> LayoutPlan:
        """What each axis does to the model."""

    @property
    def is_staged(self) -> bool:
        """Whether this rank has stages of a pipeline."""

    def models(self) -> list[nn.Module]:
        """Returns the module, or one for each stage of this rank."""

    def owned(self) -> nn.Module:
        """Returns one module that holds all of them, under the names of the model."""

    def units(self) -> list[tuple[nn.Module, list[nn.Module]]]:
        """Returns what data parallel wraps: each root with the blocks inside it."""

    def parameter_names(self) -> dict[str, str]:
        """Returns what the model as written calls each parameter that is here."""

    def placements(self) -> dict[str, Placement]:
        """Returns which block of the model as written each parameter here is."""

    def ties_of_stages(self) -> tuple[tuple[str, ...], ...]:
        """Returns the groups of names that share a parameter across stages."""

    def average_copies(self) -> Sync | None:
        """Keeps a copy on each rank of the data axes, and averages their gradients.

        Returns:
            What turns the averaging on or off for the next backward; None where this
            rank has nobody to average with.
        """

    def average_shards(self, *, reshard: bool, **options: Any) -> Sync | None:
        """Shards what is here over the data axes, as `fully_shard` does.

        Args:
            reshard: Whether a block is gathered again for its backward.
            **options: More for `fully_shard`.
        """

    def materialize(
        self, weights: str | Callable[[nn.Module], object], seed: int
    ) -> None:
        """Gives what was built without weights its values, once it is sharded.

        Args:
            weights: Where they come from, as `accelerate` takes it.
            seed: What they are drawn with.

        Raises:
            ProgramError: Nothing sets one of the parameters.
        """

    def pipeline(self) -> PipelinePasses | None:
        """Returns what drives the stages; None without a pipeline. Ranks call it together."""

    def divided_loss(self) -> DividedLoss | None:
        """Returns how a loss is taken from shards of the output; None where it is whole."""

    def clip_grad_norm(
        self, parameters: Sequence[torch.nn.Parameter], max_norm: float
    ) -> Tensor:
        """Scales gradients to a total norm over all ranks, and returns the norm before."""

    def entries(self, optimizer: torch.optim.Optimizer) -> dict[str, StateEntry]:
        """Returns the entries `model` and `optimizer` of a checkpoint."""

    def state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Returns `model` and `optimizer` by canonical names, sharing memory.

        Raises:
            NamesError: The optimizer's state has no names by parameter.
        """

    def load_state_dict(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Takes over what `state_dict` gave, on this mesh or another.

        Raises:
            CheckpointError: It does not fit; nothing has been changed.
        """


class DeviceRates(Protocol):
    """What a device was measured to do at best.

    Attributes:
        flops_per_s: The best rate of a matrix product, by number format.
        bytes_per_s: Memory traffic, read and written.
        overhead_s: Seconds of an operator on a tiny tensor.
        all_reduce: Between the ranks, with `alpha_s` and `beta_s_per_byte`; None for one
            rank, or when it is not known.
    """

    @property
    def flops_per_s(self) -> Mapping[str, float]: ...  # noqa: D102
    @property
    def bytes_per_s(self) -> float: ...  # noqa: D102
    @property
    def overhead_s(self) -> float: ...  # noqa: D102
    @property
    def all_reduce(self) -> Any: ...  # noqa: D102


class MeshRanking(NamedTuple):
    """Which meshes are worth a trial.

    Attributes:
        kept: Those that are, the most promising first.
        rejected: The others, and why.
    """

    kept: tuple[Choice, ...]
    rejected: list[Rejected]


@runtime_checkable
class ModelLayout(Protocol):
    """Plans how a model is laid over a mesh."""

    def plan(
        self,
        model: nn.Module,
        batch: Any,
        loss_of: LossOf,
        choices: Sequence[Choice],
        world_size: int,
    ) -> LayoutPlan:
        """Returns what each axis does to the model; proven in this process.

        Args:
            model: The model as written; it is left as it is.
            batch: A global batch.
            loss_of: Returns the loss of a model on a batch.
            choices: The plan that is to be applied.
            world_size: Ranks in all.

        Raises:
            PlanError: An axis cannot be used with this model, and why.
        """

    def read_plan(self, data: Mapping[str, Any]) -> LayoutPlan:
        """Returns the plan that its `to_dict` wrote."""

    def rank_meshes(
        self,
        meshes: Sequence[Choice],
        model: nn.Module,
        batch: Any,
        loss_of: LossOf,
        context: Context,
        rates: DeviceRates,
    ) -> MeshRanking:
        """Returns which meshes are worth a trial, by what a step on each would take.

        Args:
            meshes: The candidates.
            model: The model as written.
            batch: A global batch.
            loss_of: Returns the loss of a model on a batch.
            context: The facts.
            rates: What the device does.

        Raises:
            DrivetrainError: Nothing can be predicted of this model.
        """

    def build_meta_model(self, factory: Callable[[], object]) -> object:
        """Returns what a factory builds, with parameters on the meta device.

        Raises:
            ProgramError: It needs the values of its weights.
        """

    def check_meta_model(
        self, model: nn.Module, weights: str | Callable[[nn.Module], object]
    ) -> None:
        """Refuses a model that has values already, or whose weights cannot come as asked.

        Raises:
            ProgramError: It is such a model.
        """


class NoModelLayout:
    """The fallback: lays nothing out, and says what does.

    Example:
        >>> NoModelLayout().read_plan({})
        Traceback (most recent call last):
        ...
        drivetrain_core._errors.MissingLibraryError: a mesh of ranks, or weights='reset' \
or 'restore', needs another package: pip install drivetrain-parallel
    """

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        message = (
            "a mesh of ranks, or weights='reset' or 'restore', needs another package: "
            "pip install drivetrain-parallel"
        )
        raise MissingLibraryError(message)

    plan = read_plan = rank_meshes = build_meta_model = check_meta_model = _refuse
