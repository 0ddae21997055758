"""Copy of the model that several ranks hold together: what each of them reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from drivetrain_core.extending import data_part_of
from drivetrain_elastic._membership._world_group import RankLostError
from drivetrain_elastic._training._refusals import refuse
from drivetrain_elastic._training._step import StepLostError

if TYPE_CHECKING:
    from drivetrain_elastic._membership._rank_assignment import RankAssignment
    from drivetrain_elastic._membership._world import World


class ModelCopy:
    """The ranks that compute together; a single one, as a rule.

    Args:
        model: On this rank.

    Raises:
        ProgramError: Nobody has said which ranks read the same samples.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._data_part = data_part_of(model)
        self._is_sharded = isinstance(model, FSDPModule)
        if self._is_sharded and self._data_part is None:
            _require_one_axis(model)

    def part(self, assignment: RankAssignment) -> tuple[int, int]:
        """Returns into how many parts a copy divides its samples, and this rank's."""
        unit = assignment.unit
        if unit == 1 or (self._data_part is None and not self._is_sharded):
            # The ranks of a tensor-parallel copy compute on the same samples.
            return 1, 0
        return self._data_part or (unit, assignment.part)


def require_in_copy(
    world: World, lost: RankLostError | None, device: torch.device
) -> None:
    """Leaves a step on all ranks of a copy of the model if it is lost on one of them.

    They compute together, and so none may go on while another one does not.

    Args:
        world: Of the step.
        lost: Why the step is lost here; None if it is not.
        device: Where the ranks of a copy tell each other.

    Raises:
        StepLostError: It is lost.
    """
    assignment = world.assignment
    if assignment.unit > 1 and dist.is_initialized():
        are_lost = torch.tensor([int(lost is not None)], device=device)
        dist.all_reduce(are_lost, op=dist.ReduceOp.MAX)
        if are_lost > 0 and lost is None:
            lost = RankLostError("it failed on another rank of this copy of the model")
    if lost is None:
        return
    raise StepLostError(str(lost)) from lost


def _require_one_axis(model: torch.nn.Module) -> None:
    """Refuses a mesh of which nobody has said which ranks read the same samples.

    Raises:
        ProgramError: FSDP's shards are divided again, along another axis.
    """
    for parameter in model.parameters():
        if not isinstance(parameter, DTensor) or parameter.device_mesh.ndim == 1:
            continue
        # Copies by shards, as FSDP2 places them, all read samples of their own.
        if parameter.device_mesh.ndim > 2 or not parameter.placements[0].is_replicate():
            refuse("mesh", mesh=parameter.device_mesh)
