"""MegaScale's ablation, step by step: each is a change of what the model is given.

The figures are those of arXiv 2402.15627, table 3, noted from memory of the paper: 175
billion parameters on 256 devices, with a batch of 256 samples until the last step.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

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


ABLATION = (
    AblationStep(name="base", measured=47.7, note="nothing overlapped"),
    AblationStep(
        name="parallel block",
        measured=52.3,
        model={"parallel_block": True},
        note="one tensor-parallel reduction a block, one norm",
    ),
    AblationStep(
        name="sliding window",
        measured=53.3,
        model={"window": 512},
        note="fewer keys visited; the window is assumed",
    ),
    AblationStep(
        name="tensor overlap",
        measured=55.5,
        options={"overlap_tensor": 0.9},
        note="nine parts in ten hidden",
    ),
    AblationStep(
        name="pipeline overlap",
        measured=58.0,
        options={"overlap_pipeline": 1.0},
        note="messages hidden",
    ),
    AblationStep(
        name="data overlap",
        measured=59.5,
        options={"overlap_data": 1.0},
        note="hidden behind the last round",
    ),
    AblationStep(
        name="kernels",
        measured=61.2,
        options={"fused_kernels": True},
        note="fused norms and activations",
    ),
    AblationStep(
        name="misc", measured=62.3, note="data loading and others: no such term"
    ),
    AblationStep(
        name="LAMB, batch x3",
        measured=65.3,
        options={"global_batch": 768},
        note="three times the micro-batches",
    ),
)
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
