"""One picture of the main job: the losses with the kill, and the trials with their times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_core import Measurement, MissingLibraryError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LONGEST = 46


def draw(result: Mapping[str, Any], path: Path) -> Path:
    """Draws the picture, and returns its path.

    Args:
        result: Of the main job.
        path: Of the file, as .png.

    Raises:
        MissingLibraryError: matplotlib is not installed; the message says how to.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        message = "the picture needs matplotlib: pip install 'drivetrain[plot]'"
        raise MissingLibraryError(message) from error
    trials = _trials(result["search"]["report"])
    figure = Figure(figsize=(9.0, 4.0 + 0.26 * len(trials)), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(
        2, height_ratios=[3.4, max(1.0, 0.26 * len(trials) + 0.6)]
    )
    _draw_losses(above, result)
    _draw_trials(below, trials)
    figure.savefig(path, dpi=120)
    return path


def _draw_losses(axes: Any, result: Mapping[str, Any]) -> None:
    for row in result["pair"]["rows"]:
        steps = range(1, len(row["losses"]) + 1)
        axes.plot(steps, row["losses"], label=row["name"], linewidth=1.2)
    job = result["job"]
    steps = range(1, len(job["losses"]) + 1)
    label = f"{job['num_workers']} workers, one killed"
    axes.plot(steps, job["losses"], "--", color="black", label=label, linewidth=1.2)
    if job["kill"] is not None:
        axes.axvline(job["kill"]["step"], color="tab:red", linestyle=":")
        axes.annotate(
            "SIGKILL",
            (job["kill"]["step"], 0.97),
            (4, 0),
            color="tab:red",
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            va="top",
        )
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend()


class _Trial(NamedTuple):
    """A trial of the search, as a bar is drawn of it."""

    label: str
    step_ms: float
    note: str


def _trials(report: Mapping[str, Any]) -> list[_Trial]:
    found = []
    for trial in report["trials"]:
        choices = [name for choice in trial["plan"] for name in choice]
        label = f"{trial['name']} {' + '.join(choices) or 'as written'}"
        if len(label) > _LONGEST:
            label = f"{label[: _LONGEST - 1]}…"
        took = f"a trial of {trial['seconds']:.0f} s"
        if trial["measurement"] is None:
            found.append(_Trial(label, 0.0, f"{trial['code']}, {took}"))
            continue
        measured = Measurement.from_dict(trial["measurement"])
        step_ms = measured.quiet_step_time_s * 1e3  # As the table has it.
        notes = [f"{step_ms:,.0f} ms", trial["code"], took]
        found.append(_Trial(label, step_ms, ", ".join(filter(None, notes))))
    return found


def _draw_trials(axes: Any, trials: list[_Trial]) -> None:
    labels = [trial.label for trial in trials]
    bars = axes.barh(labels, [trial.step_ms for trial in trials], color="tab:blue")
    for bar, trial in zip(bars, trials, strict=True):
        place = (trial.step_ms, bar.get_y() + bar.get_height() / 2)
        axes.annotate(f" {trial.note}", place, va="center", fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.35)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel("what a step took in each trial of the search, ms")
