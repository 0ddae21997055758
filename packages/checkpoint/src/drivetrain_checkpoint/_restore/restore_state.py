"""Restores a state in place, from the nearest place that has it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._layout.partition import specs_of
from drivetrain_checkpoint._restore.locate import locate
from drivetrain_checkpoint._restore.restore_tensors import restore_tensors
from drivetrain_core.services import plan_restoration
from drivetrain_core.services.plain_json import from_json

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from torch import Tensor

    from drivetrain_checkpoint._job_context import JobContext
    from drivetrain_core.services import Restoration

logger = logging.getLogger(__name__)


def restore_state(
    job: JobContext,
    into: MutableMapping[str, object],
    step: int | None,
    *,
    strict: bool,
    under: str,
) -> int:
    """Restores a state with all ranks, and returns its step, as a checkpointer does."""
    group = job.group
    save = locate(job, step, under)
    entries: Any = from_json(save.entries)
    specs = specs_of(save.layout)
    # All ranks know that it fits before the first of them changes anything.
    plan = group.run_on_all(
        lambda: plan_restoration(into, entries, specs, strict=strict)
    )
    targets = group.run_on_all(lambda: _targets_of(plan))
    if plan.mismatches:
        logger.warning("not all was restored: %s", plan.summary())
    restore_tensors(group, save, targets)
    for finish in plan.finish:
        finish()
    return save.selected.step


def _targets_of(plan: Restoration) -> dict[str, Tensor]:
    targets: dict[str, Tensor] = {}
    for prepare in plan.prepare:
        prepare()
    for target in plan.targets:
        targets.update(target())
    return targets
