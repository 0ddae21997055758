"""Published throughput beside what is predicted for it.

The rows, their sources, and which of them calibrate stand in `published.yaml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from drivetrain_core import PlanError
from drivetrain_core.extending import load_yaml
from drivetrain_core.mesh_shape import MeshShape
from drivetrain_parallel.cost import Hardware, StepOptions, predict, profile_transformer
from drivetrain_parallel.simulate.clusters import load_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_parallel.cost import Efficiency, ModelProfile, Prediction

_CALIBRATES_EVERY = 4
_SHARED = "efficiency"
_MEASURES = ("mfu", "hfu", "tokens_per_s")
_BEST = "best"
_MICRO_BATCHES = (1, 2, 4, 8, 16)
_VIRTUAL_STAGES = (1, 2, 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRow:
    """One measurement of others.

    Args:
        source: Who measured it.
        where: The title or repository of the source, its table or file, and version.
        is_recalled: Whether the figures were noted from memory of the paper.
        is_later: Whether it was added after all fits, its options written down before
            its first prediction.
        fits: What was fitted to it, so that it proves nothing: `efficiency` for the
            constants that all share, or an option of its source; None for a test.
        cluster: The cluster's name.
        model: The model's name.
        model_sizes: What `profile_transformer` takes.
        shape: The mesh.
        options: What `StepOptions` takes; `best` where the source does not say.
        measure: What was measured: `mfu` or `hfu` in percent, or `tokens_per_s` of a
            device.
        measured: Its value.
        memory_bytes: The measured peak of a device; None where it is not given.
    """

    source: str
    where: str
    is_recalled: bool
    is_later: bool
    fits: str | None
    cluster: str
    model: str
    model_sizes: Mapping[str, Any]
    shape: MeshShape
    options: Mapping[str, Any]
    measure: str
    measured: float
    memory_bytes: float | None = None

    def profile(self) -> ModelProfile:
        """Returns the profile of the model."""
        return profile_transformer(**self.model_sizes, name=self.model)

    @property
    def calibrates(self) -> bool:
        """Returns whether anything was fitted to it."""
        return self.fits is not None

    @property
    def global_batch(self) -> int:
        """Returns the samples of a step."""
        return int(self.options["global_batch"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A row with what is predicted for it.

    Args:
        row: The row.
        options: The options, with the best choice where the source says none.
        prediction: What is predicted.
    """

    row: PublishedRow
    options: StepOptions
    prediction: Prediction

    @property
    def predicted(self) -> float:
        """Returns the prediction in the units of the measurement."""
        if self.row.measure == "tokens_per_s":
            return self.prediction.tokens_per_s_per_device
        return 100 * float(getattr(self.prediction, self.row.measure))

    @property
    def error(self) -> float:
        """Returns how far off it is, relative to the measurement."""
        return self.predicted / self.row.measured - 1

    @property
    def memory_error(self) -> float | None:
        """Returns how far off the memory is; None where none was measured."""
        if self.row.memory_bytes is None:
            return None
        return self.prediction.memory_bytes / self.row.memory_bytes - 1


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """Returns all published rows, in the order of the file.

    Example:
        >>> rows = published_rows()
        >>> rows[0].source, rows[0].model, rows[0].fits
        ('llm-foundry', 'mpt-70b', 'efficiency')
    """
    file = files("drivetrain_parallel.simulate") / "published.yaml"
    plain: Any = load_yaml(file.read_text(encoding="utf-8"), file.name, ValueError)
    rows = []
    for source in plain["sources"]:
        for number, values in enumerate(source["rows"]):
            cells = dict(zip(source["columns"], values, strict=True))
            rows.append(_row(source, plain["models"], cells, number))
    return tuple(rows)


def predict_row(row: PublishedRow, efficiency: Efficiency | None = None) -> Outcome:
    """Returns a row with what is predicted for it.

    Args:
        row: The row.
        efficiency: Constants to try; None for the fitted ones.
    """
    hardware = Hardware.of(load_cluster(row.cluster).nodes[0], efficiency)
    return predict_on(row, hardware)


def predict_on(row: PublishedRow, hardware: Hardware) -> Outcome:
    """Returns a row with what is predicted for it on some hardware."""
    found: list[Outcome] = []
    profile = row.profile()
    for options in _choices(row):
        try:
            step = StepOptions(**options)
            prediction = predict(profile, hardware, row.shape, step)
        except PlanError:
            if len(_choices(row)) == 1:
                raise
            continue
        found.append(Outcome(row=row, options=step, prediction=prediction))
    return min(found, key=lambda outcome: outcome.prediction.step_s)


def _choices(row: PublishedRow) -> list[dict[str, Any]]:
    """Returns the options to try: one set, but where the source leaves some open."""
    found = [dict(row.options)]
    if row.options.get("micro_batch") == _BEST:
        found = [{**o, "micro_batch": n} for o in found for n in _MICRO_BATCHES]
    if row.options.get("stages_per_rank") == _BEST:
        stages = _VIRTUAL_STAGES if row.shape.pipeline > 1 else (1,)
        found = [
            {
                **options,
                "stages_per_rank": number,
                "schedule": "1f1b" if number == 1 else "interleaved_1f1b",
            }
            for options in found
            for number in stages
        ]
    return found


def _row(
    source: Mapping[str, Any],
    models: Mapping[str, Any],
    cells: dict[str, Any],
    number: int,
) -> PublishedRow:
    gpus, options = cells.pop("gpus"), dict(source["options"])
    shape = MeshShape(**cells.pop("mesh", {"shard": gpus}))
    measure = next(name for name in _MEASURES if name in cells)
    measured = float(cells.pop(measure))
    memory = cells.pop("memory_mib", None)
    fits = cells.pop("fits", None)
    if source["calibrate"] and number % _CALIBRATES_EVERY == 0:
        fits = _SHARED
    sizes = {
        **models[cells["model"]],
        **source.get("model", {}),
        "seq": cells.pop("sequence"),
    }
    if "heads" in cells:
        sizes["heads"] = cells.pop("heads")
    cluster, model = cells.pop("cluster"), cells.pop("model")
    accumulation = cells.pop("accumulation", None)
    options.update(cells)
    options.setdefault("micro_batch", 1)
    if accumulation is not None:
        options["global_batch"] = options["micro_batch"] * accumulation * gpus
    if options.get("stages_per_rank", 1) not in (1, _BEST):
        options["schedule"] = "interleaved_1f1b"
    assert shape.size == gpus, (cells, shape)
    return PublishedRow(
        source=source["name"],
        where=source["where"],
        is_recalled=source["recalled"],
        is_later=source.get("later", False),
        fits=fits,
        cluster=cluster,
        model=model,
        model_sizes=sizes,
        shape=shape,
        options=options,
        measure=measure,
        measured=measured,
        memory_bytes=None if memory is None else memory * 2.0**20,
    )
