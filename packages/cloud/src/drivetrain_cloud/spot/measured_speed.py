"""How fast a job was with each number of workers, found while it trains."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from drivetrain_cloud.spot.worker_count import Speed

if TYPE_CHECKING:
    from collections.abc import Mapping

# The first steps with other workers are not like those that follow.
_NUM_WARM = 5
_NUM_WINDOWS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedWatch:
    """What was measured, and what is being measured.

    Args:
        window_steps: How many steps are measured together.
        speeds: By number of workers.
        windows: The samples a second of the last windows of each.
        workers: How many train now.
        begin_step: With which step the window begins.
        begin_s: When that was; None while it has not begun.
    """

    window_steps: int = 20
    speeds: Mapping[int, Speed] = field(default_factory=dict)
    windows: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    workers: int = 0
    begin_step: int = 0
    begin_s: float | None = None


def watch_speed(
    now_s: float, watch: SpeedWatch, *, workers: int, step: int, step_samples: float
) -> SpeedWatch:
    """Returns what is known after another look at a job that trains.

    The speed with a number of workers is the median of its last windows, with all that
    training waits for. What is torn by a change of workers does not count.

    Args:
        now_s: The time.
        watch: What was known before.
        workers: How many train; 0 while they pause.
        step: The last one that was made.
        step_samples: Samples of a step on all workers.

    Example:
        >>> watch = SpeedWatch(window_steps=10)
        >>> for second in range(30):
        ...     watch = watch_speed(float(second), watch, workers=2, step=second,
        ...                         step_samples=8.0)
        >>> watch.speeds
        {2: Speed(samples_per_s=8.0, steps=20, measured_s=25.0)}
    """
    if workers != watch.workers or step < watch.begin_step - _NUM_WARM:
        begin_step = step + _NUM_WARM
        return replace(watch, workers=workers, begin_step=begin_step, begin_s=None)
    if not workers or step < watch.begin_step:
        return watch
    if not 0 < step_samples < math.inf:
        return watch
    num_steps = step - watch.begin_step
    if watch.begin_s is None:
        return replace(watch, begin_step=step, begin_s=now_s)
    if num_steps < watch.window_steps or now_s <= watch.begin_s:
        return watch
    found = num_steps * step_samples / (now_s - watch.begin_s)
    windows = (*watch.windows.get(workers, ()), found)[-_NUM_WINDOWS:]
    speed = Speed(
        samples_per_s=statistics.median(windows),
        steps=len(windows) * watch.window_steps,
        measured_s=now_s,
    )
    return replace(
        watch,
        windows={**watch.windows, workers: windows},
        speeds={**watch.speeds, workers: speed},
        begin_step=step,
        begin_s=now_s,
    )
