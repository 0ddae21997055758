"""What a worker's death cost: the pause, steps and samples, by what processes wrote; pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain.quickstart._steps_log import Line


class Kill(NamedTuple):
    """The end of a worker.

    Attributes:
        pid: Of the process.
        rank: That it was.
        step: In which step.
        at_s: When the signal was sent.
    """

    pid: int
    rank: int
    step: int
    at_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """What became of steps and samples.

    Args:
        num_steps: That count.
        steps_lost: That counted, and were made again all the same.
        steps_again: That were begun, did not count, and were made again.
        samples_lost: Places of the global order in no step that counts.
        samples_repeated: How often a place was in more than one.
        pause_s: From the kill to the end of the first step after it; None without one.
        step_s: What steps take, in the median of those before the kill.
        losses: The mean loss of each step over its global batch.
    """

    num_steps: int
    steps_lost: int
    steps_again: int
    samples_lost: int
    samples_repeated: int
    pause_s: float | None
    step_s: float | None
    losses: Sequence[float] = field(default_factory=tuple)


def count(
    lines: Iterable[Line], *, num_steps: int, global_batch: int, kill: Kill | None
) -> Count:
    """Returns what the training function's own files say.

    A step that was broken off is made again in a later world of ranks: what the last
    world that made it has computed is what counts.

    Args:
        lines: Of all processes.
        num_steps: Which the training was to make.
        global_batch: Samples of a step.
        kill: Of the worker, if there was one.
    """
    lines = sorted(lines, key=lambda line: line.at_s)
    last: dict[int, int] = {}
    for line in lines:
        last[line.step] = max(last.get(line.step, 0), line.world)
    counted = {line.step for line in lines if line.what == "counted"}
    again = {line.step for line in lines if line.world < last[line.step]}
    lost = {
        line.step
        for line in lines
        if line.what == "counted" and line.world < last[line.step]
    }
    parts = [line for line in lines if _is_final_part(line, last, counted)]
    seen = Counter(place for line in parts for place in line.samples)
    losses = [0.0] * num_steps
    for line in parts:
        if line.step <= num_steps:
            losses[line.step - 1] += line.loss
    return Count(
        num_steps=len(counted),
        steps_lost=len(lost),
        steps_again=len(again - lost),
        samples_lost=len(set(range(num_steps * global_batch)) - set(seen)),
        samples_repeated=sum(number - 1 for number in seen.values()),
        pause_s=_pause_s(lines, kill),
        step_s=_step_s(lines, kill),
        losses=tuple(losses),
    )


def _is_final_part(line: Line, last: dict[int, int], counted: set[int]) -> bool:
    is_last = line.world == last[line.step]
    return line.what == "part" and line.step in counted and is_last


def _pause_s(lines: Sequence[Line], kill: Kill | None) -> float | None:
    if kill is None:
        return None
    # A rank may tell of the step before only after the kill.
    ends = [
        line.at_s for line in lines if line.what == "counted" and line.step >= kill.step
    ]
    return min(ends) - kill.at_s if ends else None


def _step_s(lines: Sequence[Line], kill: Kill | None) -> float | None:
    ends: dict[int, float] = {}
    for line in lines:
        if line.what == "counted" and (kill is None or line.at_s < kill.at_s):
            ends.setdefault(line.step, line.at_s)
    gaps = sorted(ends[step] - ends[step - 1] for step in ends if step - 1 in ends)
    return gaps[len(gaps) // 2] if gaps else None


class LossGap(NamedTuple):
    """How far two runs of the same steps are from each other.

    Attributes:
        before: The largest difference of a step's losses before the kill.
        after: The difference of the losses of most steps from there on: the median.
        most_after: The largest one.
        scale: How large the undisturbed run's losses are, in the median.
    """

    before: float
    after: float
    most_after: float
    scale: float


def loss_gap(
    undisturbed: Sequence[float], losses: Sequence[float], *, kill_step: int
) -> LossGap:
    """Returns how far the losses are from those of the undisturbed run.

    Sums in another order, or of bfloat16, lead two runs slowly apart, and single steps
    further than others; state or samples that are lost tell in all steps that follow.

    Args:
        undisturbed: Of its steps, at least as many.
        losses: Of a run in which a worker was killed.
        kill_step: In which step, from 1.

    Example:
        >>> loss_gap([3.0, 2.0, 1.0, 1.0], [3.0, 2.5, 1.25, 1.0], kill_step=3)
        LossGap(before=0.5, after=0.125, most_after=0.25, scale=1.5)
    """
    apart = [
        0.0 if math.isnan(a) and math.isnan(b) else abs(a - b)
        for a, b in zip(undisturbed, losses, strict=False)
    ]
    before, after = apart[: kill_step - 1], apart[kill_step - 1 :]
    middle = statistics.median(after) if after else 0.0
    scale = statistics.median(map(abs, undisturbed)) if undisturbed else 0.0
    return LossGap(max(before, default=0.0), middle, max(after, default=0.0), scale)
