"""The four plots of a search.

Each returns a picture, or a sentence where there is nothing to draw. No colour carries a
meaning alone: shapes and words say the same.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from drivetrain_core.drawing.svg import (
    Axis,
    across,
    group,
    line,
    rect,
    svg,
    text,
    upward,
)
from drivetrain_core.extending import describe
from drivetrain_search.report.record import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drivetrain_search.final import Comparison
    from drivetrain_search.report.data import ReportData
    from drivetrain_search.report.record import TrialRecord

_WIDTH = 860.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, _WIDTH - 24.0, 34.0, 44.0
_ROW = 42.0
_MIB = 1 << 20
_BINS = 40
_LONGEST_LABEL = 118
# One step that was far quicker than all others would squeeze the bars.
_WIDEST = 1.5


def plot_speeds(report: ReportData) -> str:
    """Returns the speed of every trial beside the baseline's, the fastest first."""
    trials = sorted(report.trials, key=lambda trial: -_speed(report, trial))
    best = max(map(_speed_of(report), trials), default=1.0)
    ends = [_span(report, trial)[1] for trial in trials if trial.measurement]
    most = min(max(ends, default=1.0), _WIDEST * best)
    axis = Axis.over([0.0, 1.0, best, most], 12.0, _WIDTH - 150)
    bottom = _ROW * len(trials) + 6
    parts = [across(axis, 0, bottom, "speed, as a multiple of the baseline's")]
    x = axis.at(1.0)
    parts.append(line(x, 0, x, bottom, "base"))
    for number, trial in enumerate(trials):
        parts.append(_speed_row(report, trial, axis, _ROW * number))
    about = f"{count_text(trials)}; the fastest ran at {best:.2f} times the baseline"
    size = (_WIDTH, bottom + _BOTTOM)
    return svg("speeds", "Speed of every trial", about, size, "".join(parts))


def _speed_row(report: ReportData, trial: TrialRecord, axis: Axis, y: float) -> str:
    kind = _kind(report, trial)
    strong = " strong" if kind == "chosen" else ""
    marks = _marks(report, trial)
    mark = f"  ({', '.join(marks)})" if marks else ""
    label = f"{trial.name}  {describe(trial.choices)}"
    room = _LONGEST_LABEL - len(mark)
    label = (label if len(label) <= room else f"{label[: room - 1]}…") + mark
    parts = [text(axis.start, y + 15, label, f"label{strong}")]
    if trial.measurement is None:
        parts.append(text(axis.start, y + 32, trial.code or "no result", "bad"))
        return group(_tip(report, trial), parts)
    ratio = _speed(report, trial)
    width = max(axis.at(ratio) - axis.start, 1.0)
    parts.append(rect(axis.start, y + 21, (width, 14), kind))
    low, high = map(axis.at, _span(report, trial))
    middle = y + 28
    parts.append(line(low, middle, high, middle, "span"))
    parts += [line(end, middle - 4, end, middle + 4, "span") for end in (low, high)]
    value = f"{ratio:.2f}x" + (f" {trial.code}" if trial.code else "")
    end = max(axis.start + width, high) + 7
    parts.append(text(end, y + 32, value, f"label{strong}"))
    return group(_tip(report, trial), parts)


def plot_memory(report: ReportData) -> str:
    """Returns the speed of every measured trial over its peak memory."""
    shown = [
        (_speed(report, trial), trial.measurement.peak_memory_bytes / _MIB, trial)
        for trial in report.trials
        if trial.measurement is not None
    ]
    if not shown:
        return _nothing("No trial was measured.")
    bottom = 320.0
    sizes = Axis.over([size for _, size, _ in shown], _LEFT, _RIGHT - 40, pad=0.08)
    speeds = Axis.over([1.0, *(speed for speed, *_ in shown)], bottom, _TOP, pad=0.12)
    parts = [
        across(sizes, _TOP, bottom, "peak memory, MiB"),
        upward(speeds, _LEFT, _RIGHT, "speed, as a multiple of the baseline's"),
        line(_LEFT, speeds.at(1.0), _RIGHT, speeds.at(1.0), "base"),
    ]
    taken: list[tuple[float, float]] = []
    for speed, size, trial in sorted(shown, key=lambda row: -row[0]):
        x, y = sizes.at(size), speeds.at(speed)
        place = y
        while any(abs(place - b) < 12 and abs(x - a) < 32 for a, b in taken):
            place += 12
        taken.append((x, place))
        label = text(x + 10, place + 4, trial.name, _label(report, trial))
        parts.append(group(_tip(report, trial), [_dot(x, y, report, trial), label]))
    about = f"{len(shown)} trials; to the left is less memory, upward is faster"
    size_px = (_WIDTH, bottom + _BOTTOM)
    return svg("memory", "Memory against speed", about, size_px, "".join(parts))


def plot_progress(report: ReportData) -> str:
    """Returns every trial at the second it ended, with the best speed so far."""
    if not report.trials:
        return _nothing("No trial ran.")
    ends = _ends(report.trials)
    bottom = 320.0
    seconds = Axis.over([0.0, report.seconds, *ends], _LEFT, _RIGHT)
    speeds = Axis.over(
        [0.0, 1.0, *map(_speed_of(report), report.trials)], bottom, _TOP, pad=0.08
    )
    parts = [
        across(seconds, _TOP, bottom, "seconds since the search began"),
        upward(speeds, _LEFT, _RIGHT, "speed, as a multiple of the baseline's"),
        line(_LEFT, speeds.at(1.0), _RIGHT, speeds.at(1.0), "base"),
    ]
    best, path, dots = 0.0, "", []
    for end, trial in sorted(zip(ends, report.trials, strict=True), key=_first):
        x, speed = seconds.at(end), _speed(report, trial)
        if trial.usable and speed > best:
            y = speeds.at(speed)
            path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
            best = speed
        tip = f"{_tip(report, trial)}\nended after {end:.1f} s"
        dots.append(group(tip, [_dot(x, speeds.at(speed), report, trial)]))
    if path:
        path += f"H{seconds.at(max(report.seconds, *ends)):.1f}"
        parts.append(f'<path class="best" d="{path}"/>')
    about = f"the best trial ran at {best:.2f} times the baseline's speed"
    size = (_WIDTH, bottom + _BOTTOM)
    return svg("progress", "The search over time", about, size, "".join(parts + dots))


def plot_final(comparison: Comparison | None) -> str:
    """Returns the step times of baseline and plan in the final, and the speed-up."""
    if comparison is None:
        return _nothing("There was no final: no plan was faster in its trial.")
    runs = {"baseline": comparison.baseline, "plan": comparison.plan}
    times = {name: [1e3 * t for t in run.step_times_s] for name, run in runs.items()}
    most = 1.1 * max(_quantile(values, 0.95) for values in times.values())
    inside = [min(t, most) for values in times.values() for t in values]
    axis = Axis.over(inside, _LEFT, _RIGHT, pad=0.04)
    tall, bottom = 104.0, 228.0
    parts = [across(axis, 10, bottom, "time of a step, milliseconds")]
    for number, (name, values) in enumerate(times.items()):
        floor = bottom - (1 - number) * (tall + 8)
        kind = "plain" if name == "baseline" else "chosen"
        parts.append(_histogram(values, axis, floor, tall - 26, kind))
        parts.append(_median(name, values, axis, (floor - tall, floor)))
    parts.append(_interval(comparison, bottom + 64))
    about = (
        f"the plan is {comparison.speedup:.2f} times as fast as the baseline, with a 95% "
        f"interval from {comparison.low:.2f} to {comparison.high:.2f}"
    )
    return svg("final", "The final", about, (_WIDTH, bottom + 146), "".join(parts))


def _histogram(
    values: Sequence[float], axis: Axis, floor: float, tall: float, kind: str
) -> str:
    width = (axis.high - axis.low) / _BINS
    counts = [0] * _BINS
    for value in values:
        place = int((min(value, axis.high) - axis.low) / width)
        counts[min(max(place, 0), _BINS - 1)] += 1
    wide = (axis.end - axis.start) / _BINS - 1
    bars = []
    for number, count in enumerate(counts):
        if count:
            height = tall * count / max(counts)
            x = axis.at(axis.low + number * width)
            bars.append(rect(x, floor - height, (wide, height), kind))
    return "".join([*bars, line(axis.start, floor, axis.end, floor, "floor")])


def _median(
    name: str, values: Sequence[float], axis: Axis, ends: tuple[float, float]
) -> str:
    middle = statistics.median(values)
    label = f"{name}: median {middle:.4g} ms of {len(values)} steps"
    if beyond := sum(value > axis.high for value in values):
        label += f", {beyond} beyond the right edge"
    x, (top, floor) = axis.at(middle), ends
    right = x > (axis.start + axis.end) / 2
    shift, anchor = (-7, "end") if right else (7, "start")
    return line(x, top + 6, x, floor, "median") + text(
        x + shift, top + 17, label, "label strong", anchor
    )


def _interval(comparison: Comparison, top: float) -> str:
    ends = (comparison.low, comparison.high, comparison.speedup)
    axis = Axis.over([*ends, 1.0], _LEFT, _RIGHT, pad=0.15)
    floor = top + 38
    low, high, at = (axis.at(end) for end in ends)
    label = f"{ends[2]:.2f}x, 95% interval {ends[0]:.2f} to {ends[1]:.2f}"
    middle = min(max((low + high) / 2, _LEFT + 110), _RIGHT - 110)
    return "".join(
        [
            across(axis, top + 14, floor, "speed-up"),
            line(axis.at(1.0), top + 8, axis.at(1.0), floor, "base"),
            rect(low, top + 22, (max(high - low, 2.0), 9), "interval"),
            f'<circle class="chosen" cx="{at:.1f}" cy="{top + 26.5:.1f}" r="6"/>',
            text(middle, top + 10, label, "label strong", "middle"),
        ]
    )


def _speed(report: ReportData, trial: TrialRecord) -> float:
    return report.speedup(trial) if trial.measurement is not None else 0.0


def _span(report: ReportData, trial: TrialRecord) -> tuple[float, float]:
    """Returns the speeds between which four fifths of a trial's steps lie."""
    assert trial.measurement is not None
    times = trial.measurement.step_times_s
    unit = _speed(report, trial) * trial.measurement.quiet_step_time_s
    return unit / _quantile(times, 0.9), unit / _quantile(times, 0.1)


def _speed_of(report: ReportData) -> Callable[[TrialRecord], float]:
    return lambda trial: _speed(report, trial)


def _first(pair: tuple[float, TrialRecord]) -> float:
    return pair[0]


def _ends(trials: Sequence[TrialRecord]) -> list[float]:
    """Returns when each trial ended; one from the cache takes no time."""
    if any(trial.started_s for trial in trials):
        return [t.started_s + (0.0 if t.cached else t.seconds) for t in trials]
    ends, now = [], 0.0
    for trial in trials:  # Nobody wrote down when they began: one after the other.
        now += 0.0 if trial.cached else trial.seconds
        ends.append(now)
    return ends


def _marks(report: ReportData, trial: TrialRecord) -> list[str]:
    marks = {
        "baseline": trial is report.baseline,
        "chosen": trial.choices == report.chosen,
        "from the cache": trial.cached,
    }
    return [mark for mark, holds in marks.items() if holds]


def _kind(report: ReportData, trial: TrialRecord) -> str:
    if trial.code:
        return "wrong"
    return "chosen" if trial.choices == report.chosen else "plain"


def _label(report: ReportData, trial: TrialRecord) -> str:
    return "label strong" if _kind(report, trial) == "chosen" else "label"


def _dot(x: float, y: float, report: ReportData, trial: TrialRecord) -> str:
    """Returns a circle; a diamond for what was chosen, a cross for what failed."""
    kind = _kind(report, trial)
    if kind == "wrong":
        return line(x - 5, y - 5, x + 5, y + 5, "cross") + line(
            x - 5, y + 5, x + 5, y - 5, "cross"
        )
    if kind == "chosen":
        return f'<path class="chosen" d="M{x:.1f} {y - 8:.1f}l8 8l-8 8l-8-8z"/>'
    hollow = " hollow" if trial.cached else ""
    return f'<circle class="plain{hollow}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'


def _tip(report: ReportData, trial: TrialRecord) -> str:
    lines = [f"{trial.name}: {describe(trial.choices)}"]
    if trial.measurement is not None:
        step_ms = 1e3 * trial.measurement.quiet_step_time_s
        size = trial.measurement.peak_memory_bytes / _MIB
        lines.append(f"{_speed(report, trial):.2f}x, {step_ms:.4g} ms, {size:,.0f} MiB")
    if trial.code:
        lines.append(f"{trial.code}: {trial.because}")
    return "\n".join(lines)


def _quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[round(part * (len(ordered) - 1))]


def _nothing(sentence: str) -> str:
    return f'<p class="nothing">{sentence}</p>'
