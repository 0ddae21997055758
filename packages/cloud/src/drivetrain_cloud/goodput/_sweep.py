"""The same job with other numbers: one input at a time, two at once, or until it breaks."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.goodput._checks import check_known
from drivetrain_cloud.goodput._profile import CheckpointPlan, RecoveryProfile
from drivetrain_cloud.goodput._summary import simulate_many
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from drivetrain_cloud.goodput._config import GoodputConfig
    from drivetrain_cloud.goodput._summary import Summary

_MTBF = "mtbf_h"
_RECOVERY = tuple(
    one.name
    for one in fields(RecoveryProfile)
    if one.name not in {"name", "keeps_survivors", "may_resize"}
)
_CHECKPOINT = tuple(
    one.name for one in fields(CheckpointPlan) if one.name != "has_replicas"
)
_JOB = ("num_standbys", "step_s")
_SHARES = frozenset({"manual_share", "wrong_share"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One job of a sweep.

    Attributes:
        inputs: What was changed, and to what.
        summary: What it came to.
    """

    inputs: dict[str, float]
    summary: Summary


def input_names() -> tuple[str, ...]:
    """Returns the names of what can be changed.

    Example:
        >>> input_names()[0]
        'mtbf_h'
    """
    return (_MTBF, *_RECOVERY, *_CHECKPOINT, *_JOB)


def get_input(config: GoodputConfig, name: str) -> float:
    """Returns an input of a job.

    Args:
        config: The job.
        name: One of `input_names`; `mtbf_h` is that of the job.

    Raises:
        ProgramError: There is none of that name.
    """
    check_known("input", name, input_names())
    if name == _MTBF:
        return config.mtbf_s / 3600.0
    value: float | None = getattr(_owner(config, name), name)
    return math.inf if value is None else value


def with_input(config: GoodputConfig, name: str, value: float) -> GoodputConfig:
    """Returns a job with another input.

    Args:
        config: The job.
        name: One of `input_names`.
        value: The new one.

    Raises:
        ProgramError: There is none of that name, or the value is out of range.

    Example:
        >>> from drivetrain_cloud.goodput import preset
        >>> job = preset("drivetrain").config(num_nodes=1536)
        >>> round(with_input(job, "mtbf_h", 2.0).mtbf_s)
        7200
    """
    check_known("input", name, input_names())
    if name == _MTBF:
        if not value > 0 or math.isinf(value):
            message = f"mtbf_h must be more than 0 and finite, got {value:g}"
            raise ProgramError(message)
        return config.rarer(value * 3600.0 / config.mtbf_s)
    changes: dict[str, Any] = {name: value}
    if name in _RECOVERY:
        # Keeps a heartbeat within its time-out.
        if name == "node_timeout_s":
            changes["heartbeat_s"] = min(config.recovery.heartbeat_s, value)
        return replace(config, recovery=replace(config.recovery, **changes))
    if name in _CHECKPOINT:
        return replace(config, checkpoint=replace(config.checkpoint, **changes))
    if name == "num_standbys" and math.isfinite(value):
        changes[name] = round(value)
    return replace(config, **changes)


def sweep(
    config: GoodputConfig,
    values: dict[str, Sequence[float]],
    *,
    days: float = 90.0,
    seeds: Iterable[int] = range(5),
    report: Callable[[int, int], None] | None = None,
) -> list[Point]:
    """Simulates a job with each combination of some inputs.

    Args:
        config: The job.
        values: Which values each input takes.
        days: How long each run is.
        seeds: Of the runs of each.
        report: Called with how many are done, and of how many.

    Raises:
        ProgramError: An input has no values, does not exist, or is out of range.

    Example:
        >>> from drivetrain_cloud.goodput import preset
        >>> job = preset("drivetrain").config(num_nodes=64)
        >>> points = sweep(job, {"mtbf_h": [1.0, 10.0]}, days=10, seeds=[0])
        >>> points[0].summary.goodput < points[1].summary.goodput
        True
    """
    jobs: list[tuple[dict[str, float], GoodputConfig]] = [({}, config)]
    for name, chosen in values.items():
        if not chosen:
            message = f"{name} must have at least one value to take, got none"
            raise ProgramError(message)
        jobs = [
            ({**inputs, name: value}, with_input(job, name, value))
            for inputs, job in jobs
            for value in chosen
        ]
    seeds = tuple(seeds)
    points = []
    for done, (inputs, job) in enumerate(jobs):
        if report is not None:
            report(done, len(jobs))
        summary = simulate_many(job, days=days, seeds=seeds)
        points.append(Point(inputs=inputs, summary=summary))
    return points


def sensitivity(
    config: GoodputConfig,
    *,
    factors: Sequence[float] = (0.25, 0.5, 2.0, 4.0),
    days: float = 90.0,
    seeds: Iterable[int] = range(5),
    report: Callable[[int, int], None] | None = None,
) -> dict[str, list[float]]:
    """Returns the goodput with each input multiplied by some factors.

    Args:
        config: The job.
        factors: By which each is multiplied; a share is at most 1.
        days: How long each run is.
        seeds: Of the runs of each.
        report: Called with how many are done, and of how many.

    Returns:
        By name, those first that change the goodput most; inputs of 0 are left out.

    Raises:
        ProgramError: A factor is out of range.
    """
    names = [
        name
        for name in input_names()
        if get_input(config, name) and math.isfinite(get_input(config, name))
    ]
    seeds = tuple(seeds)
    found: dict[str, list[float]] = {}
    for done, name in enumerate(names):
        if report is not None:
            report(done, len(names))
        values = [_scaled(config, name, factor) for factor in factors]
        points = sweep(config, {name: values}, days=days, seeds=seeds)
        found[name] = [point.summary.goodput for point in points]
    return dict(sorted(found.items(), key=lambda entry: min(entry[1]) - max(entry[1])))


def break_even(
    config: GoodputConfig,
    name: str,
    *,
    target: float = 0.98,
    days: float = 90.0,
    seeds: Iterable[int] = range(5),
    most: float = 1024.0,
) -> float | None:
    """Returns by how much an input may be worse until too little time counts.

    Args:
        config: The job.
        name: One of `input_names`.
        target: The share of the time that must count.
        days: How long each run is.
        seeds: Of the runs.
        most: The largest factor that is tried.

    Returns:
        The factor to about a tenth, below 1 where the job has too little even so, down
        to 1 / `most`, and None where not even the largest is too much. `mtbf_h` is
        divided by it.

    Raises:
        ProgramError: The input is 0, or does not exist.
    """
    if not get_input(config, name):
        message = f"{name} is 0, and no factor makes it more"
        raise ProgramError(message)
    seeds = tuple(seeds)

    def is_enough(factor: float) -> bool:
        ratio = 1 / factor if name == _MTBF else factor
        job = with_input(config, name, _scaled(config, name, ratio))
        return simulate_many(job, days=days, seeds=seeds).goodput >= target

    # From the usual value on in doublings: far from it nothing need be as it was, since a
    # failure that is never noticed costs nothing.
    low = high = 1.0
    if is_enough(1.0):
        while is_enough(high):
            if high >= most:
                return None
            low, high = high, min(high * 2, most)
    else:
        while not is_enough(low):
            if low <= 1 / most:
                return 1 / most
            low, high = max(low / 2, 1 / most), low
    while high / low > 1.1:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_enough(middle) else (low, middle)
    return low


def _scaled(config: GoodputConfig, name: str, factor: float) -> float:
    value = get_input(config, name) * factor
    if name in _SHARES:
        return min(value, 1.0)
    if name == "num_standbys":
        return min(value, config.num_nodes)
    return value


def _owner(config: GoodputConfig, name: str) -> Any:
    if name in _RECOVERY:
        return config.recovery
    return config.checkpoint if name in _CHECKPOINT else config
