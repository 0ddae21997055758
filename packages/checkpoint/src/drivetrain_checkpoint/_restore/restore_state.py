"""Restores a state in place, from the nearest place that has it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from drivetrain_checkpoint._errors import CorruptCheckpointError
from drivetrain_checkpoint._layout.partition import specs_of
from drivetrain_checkpoint._layout.rank_entries import entries_of_rank
from drivetrain_checkpoint._restore.locate import locate
from drivetrain_checkpoint._restore.restore_tensors import restore_tensors
from drivetrain_checkpoint._storage.course import Dated
from drivetrain_core import CheckpointError
from drivetrain_core.services import plan_restoration

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from torch import Tensor

    from drivetrain_checkpoint._job_context import JobContext
    from drivetrain_checkpoint._restore.locate import LocatedSave
    from drivetrain_core.services import Restoration, TensorSpec
    from drivetrain_core.services.packed_state import Entry

logger = logging.getLogger(__name__)

_MOST_OVERWRITTEN = 5


def restore_state(
    job: JobContext,
    into: MutableMapping[str, object],
    step: int | None,
    *,
    strict: bool,
    under: str,
) -> int:
    """Restores a state with all ranks, and returns its step, as a checkpointer does."""
    damaged: list[Dated] = []
    num_overwritten = 0
    while True:
        save = locate(job, step, under, damaged)
        problem = _try(job, save, into, strict=strict)
        if problem is None:
            return save.selected.step
        if isinstance(problem, CorruptCheckpointError) and step is None:
            found, said = save.selected, str(problem)
            damaged.append(Dated(found.saved_at_ns, found.step, found.save_id, said))
            continue
        num_overwritten += not isinstance(problem, CorruptCheckpointError)
        if num_overwritten in {0, _MOST_OVERWRITTEN}:
            raise problem


def _try(
    job: JobContext,
    save: LocatedSave,
    into: MutableMapping[str, object],
    *,
    strict: bool,
) -> CheckpointError | None:
    """Restores one save with all ranks; returns why it could not, the same on all.

    Returns:
        What is damaged in it, on any rank; or that a trainer has overwritten it in
        memory while it was read.
    """
    group = job.group
    entries, specs, because = group.run_on_all(lambda: _plain_of(save))
    if said := next(filter(None, group.all_gather(because)), ""):
        return CorruptCheckpointError(said)
    # All ranks know that it fits before the first of them changes anything.
    own, others = entries_of_rank(entries, group.rank, group.world_size)
    part = {key: value for key, value in into.items() if key not in others}
    plan = group.run_on_all(lambda: plan_restoration(part, own, specs, strict=strict))
    targets = group.run_on_all(lambda: _targets_of(plan))
    if plan.mismatches:
        logger.warning("not all was restored: %s", plan.summary())
    for key in others.keys() & into.keys():
        logger.warning(
            "%r is left as it is: each of %d ranks has saved its own, and there are %d now",
            key,
            others[key],
            group.world_size,
        )
    problem: Exception | None = None
    try:
        restore_tensors(group, save, targets)
    # It is raised on all ranks, as what it is where it was read.
    except Exception as error:  # noqa: BLE001
        problem = error
    is_corrupt = isinstance(problem, CorruptCheckpointError)
    answers = group.all_gather((save.is_intact(), is_corrupt))
    if not all(is_intact for is_intact, _ in answers):
        text = f"step {save.selected.step} was overwritten in memory while it was read"
        return CheckpointError(text)
    if any(corrupt for _, corrupt in answers):
        if isinstance(problem, CorruptCheckpointError):
            return problem
        return CorruptCheckpointError(str(problem))
    if problem is not None:
        raise problem
    for finish in plan.finish:
        finish()
    into.update(part)
    return None


def _plain_of(
    save: LocatedSave,
) -> tuple[dict[str, Entry], dict[str, TensorSpec], str]:
    """Returns what is no tensor, the tensors that there are, and what is damaged."""
    try:
        return save.entries(), specs_of(save.layout), ""
    except CorruptCheckpointError as error:
        return {}, {}, str(error)


def _targets_of(plan: Restoration) -> dict[str, Tensor]:
    targets: dict[str, Tensor] = {}
    for prepare in plan.prepare:
        prepare()
    for target in plan.targets:
        targets.update(target())
    return targets
