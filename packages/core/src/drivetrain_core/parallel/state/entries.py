"""The entries of a checkpoint for a program over a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core.parallel.state.laid_model import LaidModel
from drivetrain_core.parallel.state.model_entry import ModelEntry
from drivetrain_core.parallel.state.optimizer_entry import OptimizerEntry

if TYPE_CHECKING:
    import torch

    from drivetrain_core._state import TrainingState
    from drivetrain_core.services.state_entry import StateEntry

__all__ = ["entries_of", "laid_model"]


def laid_model(state: TrainingState) -> LaidModel:
    """Returns what this rank has of the model of a program over a mesh.

    Args:
        state: The program, laid over its mesh.
    """
    assert state.whole_model is not None
    plan = state.parallel_plan
    return LaidModel(
        state.models(),
        state.whole_model,
        stages=[stage.stage_index for stage in state.stages],
        pipeline=None if plan is None else plan.pipeline,
    )


def entries_of(
    state: TrainingState, optimizer: torch.optim.Optimizer
) -> dict[str, StateEntry]:
    """Returns the entries `model` and `optimizer` of a program over a mesh.

    Args:
        state: The program, laid over its mesh.
        optimizer: This rank's optimizer.
    """
    model = ModelEntry(laid_model(state))
    groups = [group.names for group in state.optimizer_source.groups]
    return {"model": model, "optimizer": OptimizerEntry(optimizer, model, groups)}
