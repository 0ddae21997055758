"""Brings a saved state back, from the nearest place that has it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._fill import fill
from drivetrain_checkpoint._find import find
from drivetrain_checkpoint._pieces import DTYPES
from drivetrain_core.services import TensorSpec, plan_restoration
from drivetrain_core.services.plain_json import from_json

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from torch import Tensor

    from drivetrain_checkpoint._job import Job
    from drivetrain_core.services import Restoration

__all__ = ["Restorer"]

logger = logging.getLogger(__name__)


class Restorer:
    """Restores the saves of a job, with all its ranks.

    Args:
        job: The job.
    """

    def __init__(self, job: Job) -> None:
        """Asks nobody yet."""
        self._job = job
        self._groups: dict[Any, Any] = {}

    def restore(
        self,
        into: MutableMapping[str, object],
        step: int | None,
        *,
        strict: bool,
        under: str,
    ) -> int:
        """Restores a state in place, and returns its step, as a checkpointer does."""
        job, team = self._job, self._job.team
        meeting, storage = job.meet(), job.storage_of(under)
        save = find(team, job.client, storage, meeting, step, under)
        entries: Any = from_json(save.entries)
        specs = {
            entry.name: TensorSpec(
                name=entry.name, global_shape=entry.shape, dtype=DTYPES[entry.dtype]
            )
            for entry in save.layout.tensors
        }
        # All ranks know that it fits before the first of them changes anything.
        plan = team.on_all(
            lambda: plan_restoration(into, entries, specs, strict=strict)
        )
        targets = team.on_all(lambda: _targets_of(plan))
        if plan.mismatches:
            logger.warning("not all was restored: %s", plan.summary())
        fill(team, save, targets, self._groups)
        for finish in plan.finish:
            finish()
        return save.choice.step


def _targets_of(plan: Restoration) -> dict[str, Tensor]:
    targets: dict[str, Tensor] = {}
    for prepare in plan.prepare:
        prepare()
    for target in plan.targets:
        targets.update(target())
    return targets
