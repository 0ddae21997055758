"""Applies a plan to a program: the one place where a model is changed."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from torch.optim.lr_scheduler import ReduceLROnPlateau

from drivetrain_core._accelerated import Accelerated
from drivetrain_core._choice import Choice, Phase
from drivetrain_core._data.loader import DeviceLoader
from drivetrain_core._data.rank_loader import AgreedLoader, rank_loader
from drivetrain_core._errors import (
    Code,
    DrivetrainError,
    PlanError,
    ProgramError,
    first_line,
)
from drivetrain_core._model.meta_model import move_to
from drivetrain_core._optimizer.master_weights import MasterWeightOptimizer
from drivetrain_core._ranks import agree
from drivetrain_core._registry import find
from drivetrain_core._rendezvous_store import Notes
from drivetrain_core._state import TrainingState
from drivetrain_core._step import TrainStep
from drivetrain_core.mesh_shape import data_part
from drivetrain_core.services.batch_plan import BatchPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from drivetrain_core._context import Context
    from drivetrain_core._optimizer.source import OptimizerSource
    from drivetrain_core._plan import Plan
    from drivetrain_core._program import Program
    from drivetrain_core.services.model_layout import LayoutPlan


def build(
    program: Program,
    model: torch.nn.Module,
    source: OptimizerSource,
    plan: Plan,
    context: Context,
    device: torch.device,
    layout: LayoutPlan | None = None,
) -> Accelerated:
    """Returns the program with a plan applied: `prepare` and `finish` on all ranks.

    It is in two parts, so that a rank that fails alone leaves none waiting for it.

    Raises:
        PlanError: An optimization failed. Global settings are put back; the model is
            not to be used any further.
    """
    world, given = context.world, (program, model, source, plan, context, device)
    state = agree(lambda: prepare(*given, layout), world, "prepare")
    return agree(lambda: finish(program, state, plan), world, "finish")


def prepare(
    program: Program,
    model: torch.nn.Module,
    source: OptimizerSource,
    plan: Plan,
    context: Context,
    device: torch.device,
    layout: LayoutPlan | None = None,
) -> TrainingState:
    """Applies what comes before the averaging of gradients.

    Where there is a mesh, it is made here: ranks wait for one another then.

    Args:
        program: The user's program.
        model: Its model, not yet on the device; it is changed in place.
        source: The recipe of its optimizer.
        plan: What to apply; it must have been checked.
        context: The facts that the plan was checked against.
        device: Where to train.
        layout: What each axis of a mesh does to the model, if the plan has a mesh.

    Raises:
        PlanError: An optimization failed, as in `build`.
    """
    world = context.world
    data_size, data_rank = data_part(plan.choices, world.size, world.rank)
    whole = BatchPlan(
        world_size=data_size, global_batch=context.batch.size, num_micro_batches=1
    )
    module = move_to(model, device)
    state = TrainingState(
        module=module,
        model=module,
        device=device,
        context=context,
        choices=tuple(plan.choices),
        optimizer_source=source,
        loader=rank_loader(
            program.data, context.loop.loader, whole, data_rank, program.seed
        ),
        loss_of=program.loss_of,
        returns_loss=program.loss is None,
        data_size=data_size,
        data_rank=data_rank,
        layout_plan=layout,
    )
    with _undone_on_error(state):
        for choice in plan.choices:
            if find(choice.name).phase < Phase.SHARD:
                _apply_one(state, choice)
    return state


def finish(program: Program, state: TrainingState, plan: Plan) -> Accelerated:
    """Applies what ranks do together, and builds the optimizer and the step.

    Raises:
        PlanError: An optimization failed, as in `build`.
    """
    with _undone_on_error(state):
        by_phase = [(find(choice.name).phase, choice) for choice in plan.choices]
        for phase, choice in by_phase:
            if Phase.SHARD <= phase <= Phase.OPTIMIZER:
                _apply_one(state, choice)
        if program.weights != "build":
            _materialize(state, program)
        optimizer = state.optimizer_source.build(state.owned(), _names_of(state))
        _require_own_parameters(optimizer, state)
        _require_one_pass(optimizer, state)
        for phase, choice in by_phase:
            if phase > Phase.OPTIMIZER:
                _apply_one(state, choice)
        batch_plan = BatchPlan(
            world_size=state.data_size,
            global_batch=state.context.batch.size,
            num_micro_batches=state.num_micro_batches,
        )
        if state.context.world.size > 1:
            notes = Notes("data")
            data_rank, seed = state.data_rank, program.seed
            state.loader = AgreedLoader(state.loader, data_rank, seed, notes)
        if state.device.type != "cpu" and state.context.loop.sample_on_host:
            state.loader = DeviceLoader(state.loader, state.device)
        scheduler = program.scheduler(optimizer) if program.scheduler else None
        if isinstance(scheduler, ReduceLROnPlateau):
            message = (
                "ReduceLROnPlateau steps on a metric, which train_step does not have; "
                "make it from the optimizer that accelerate returns, and step it there"
            )
            raise ProgramError(message)
        step = TrainStep(program, state, optimizer, batch_plan, scheduler)
    # An optimization may have settled what its choice left open.
    applied = dataclasses.replace(plan, choices=state.choices)
    return Accelerated(state, optimizer, step, applied, scheduler)


def _names_of(state: TrainingState) -> dict[str, str] | None:
    """Returns what the whole model calls each parameter here; None without a mesh."""
    return None if state.layout is None else state.layout.parameter_names()


def _materialize(state: TrainingState, program: Program) -> None:
    """Gives a model that was built without weights its values, once it is sharded."""
    if state.layout is None:
        given = program.weights
        shown = "a function" if callable(given) else repr(given)
        raise PlanError(
            Code.REQUIRES,
            "mesh",
            because=f"weights={shown} builds a model without weights, which are made "
            "where a mesh has cut it, and the plan has no mesh",
            fix='add a mesh, such as ("mesh", {"shard": 4}), or use weights="build"',
        )
    state.layout.materialize(program.weights, program.seed)


@contextmanager
def _undone_on_error(state: TrainingState) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for undo in reversed(state.undo):
            with suppress(Exception):  # The first error is the one to show.
                undo()
        raise


def _apply_one(state: TrainingState, choice: Choice) -> None:
    try:
        find(choice.name).apply(state, choice.config)
    except DrivetrainError:
        raise
    except Exception as error:  # An optimization of others may fail in any way.
        raise PlanError(
            Code.ERROR, choice.name, because=f"applying it failed: {first_line(error)}"
        ) from error


def _require_one_pass(optimizer: torch.optim.Optimizer, state: TrainingState) -> None:
    """Refuses sharpness-aware optimizers in a pipeline.

    They take one norm over all gradients, and see those of this rank's stages only.
    """
    staged = state.layout is not None and state.layout.is_staged
    if staged and hasattr(optimizer, "perturb"):
        raise PlanError(
            Code.CONFLICT,
            "optimizer",
            because=f"{type(optimizer).__name__} perturbs the weights by the norm of "
            "the whole gradient, and a rank of a pipeline has that of its stages only",
            fix="use pipeline=1, or an optimizer of one pass",
        )


def _require_own_parameters(
    optimizer: torch.optim.Optimizer, state: TrainingState
) -> None:
    """Refuses an optimizer that would step tensors which are no longer the model's.

    It would run, and train nothing.
    """
    trained: Iterable[torch.Tensor] = state.owned().parameters()
    if isinstance(optimizer, MasterWeightOptimizer):
        trained = optimizer.masters.values()
    own = {id(parameter) for parameter in trained}
    for group in optimizer.param_groups:
        if any(id(parameter) not in own for parameter in group["params"]):
            raise PlanError(
                Code.ORDER,
                "optimizer",
                because="the optimizer holds parameters that the model no longer has",
                fix="let the factory use the parameters that it is given",
            )
