"""MegaScale's ablation, step by step: each is a change of what the model is given.

The figures are those of arXiv 2402.15627, table 3, noted from memory of the paper: 175
billion parameters on 256 devices, with a batch of 256 samples until the last step.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from drivetrain_core.extending import load_yaml
from drivetrain_parallel.cost import Hardware, StepOptions, rank_meshes
from drivetrain_parallel.simulate.clusters import load_cluster
from drivetrain_parallel.simulate.published import Outcome, predict_row, published_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_parallel.cost import Efficiency, Prediction, Ranking
    from drivetrain_parallel.simulate.published import PublishedRow

_BATCH = 256
_LARGE = 12288


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationStep:
    """One thing that MegaScale changed, added to those before it.

    Args:
        name: What they call it.
        measured: The MFU after it, in percent.
        model: What changes of the model's sizes.
        options: What changes of the step's options.
        note: What the cost model makes of it.
    """

    name: str
    measured: float
    model: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


_FILE = files("drivetrain_parallel.simulate") / "ablation.yaml"
_PLAIN: Any = load_yaml(_FILE.read_text("utf-8"), "ablation.yaml")

ABLATION = tuple(AblationStep(**step) for step in _PLAIN)
"""The steps, in their order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationOutcome(Outcome):
    """What is predicted after a step: the row is that of the paper's baseline, changed.

    Args:
        step: The step.
    """

    step: AblationStep


def predict_ablation(efficiency: Efficiency | None = None) -> list[AblationOutcome]:
    """Returns every step with what is predicted for it.

    Args:
        efficiency: Constants to try; None for the fitted ones.

    Example:
        >>> found = predict_ablation()
        >>> found[-1].step.name, found[-1].predicted > found[0].predicted
        ('LAMB, batch x3', True)
    """
    row = _row("MegaScale's Megatron-LM")
    row = dataclasses.replace(row, options={**row.options, "global_batch": _BATCH})
    found = []
    for step in ABLATION:
        row = dataclasses.replace(
            row,
            model_sizes={**row.model_sizes, **step.model},
            options={**row.options, **step.options},
            measured=step.measured,
        )
        plain = predict_row(row, efficiency)
        found.append(
            AblationOutcome(
                row=row, options=plain.options, prediction=plain.prediction, step=step
            )
        )
    return found


@cache
def best_at_scale() -> tuple[Ranking, Prediction]:
    """Returns all meshes for MegaScale's largest job, and what is predicted for its own.

    12,288 devices and a batch of 6,144, where MegaScale reports 55.2% MFU. The model and
    the overlaps are MegaScale's; mesh, schedule, micro-batch and checkpointing are free.
    """
    row = _row("MegaScale", _LARGE)
    ranking = rank_meshes(
        row.profile(),
        Hardware.of(load_cluster(row.cluster).nodes[0]),
        row.shape.size,
        row.global_batch,
        template=StepOptions(**row.options),
        zero=(1,),
    )
    return ranking, predict_row(row).prediction


def _row(source: str, size: int | None = None) -> PublishedRow:
    return next(
        row
        for row in published_rows()
        if row.source == source and size in (None, row.shape.size)
    )
