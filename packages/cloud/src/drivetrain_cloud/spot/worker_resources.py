"""How much processor time and memory a worker is to ask for: what it needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEMORY_STEP = 64 << 20
_CPU_STEP = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What a worker asks for.

    Args:
        cpus: Processors.
        memory_bytes: Memory.
    """

    cpus: float
    memory_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class UseWindow:
    """What a worker used for a while.

    Args:
        cpus: Processors that it kept busy, at the 95th percentile.
        memory_bytes: The most memory that it held.
        killed_for_memory: Whether the kernel ended it for want of memory.
    """

    cpus: float
    memory_bytes: int
    killed_for_memory: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceBounds:
    """Within what bounds requests follow use.

    Args:
        least: The least that is asked for.
        most: The most.
        headroom: How much more than what was used is asked for, as a factor.
        growth: By what factor a request grows that was too small.
        patience: How many windows must agree before less is asked for.
        deadband: What share of the request must be idle before less is asked for.

    Raises:
        ProgramError: The numbers contradict each other.
    """

    least: Resources
    most: Resources
    headroom: float = 1.25
    growth: float = 1.5
    patience: int = 5
    deadband: float = 0.25

    def __post_init__(self) -> None:
        """Checks the fields."""
        for name in ("cpus", "memory_bytes"):
            low, high = getattr(self.least, name), getattr(self.most, name)
            if not 0 < low <= high < math.inf:
                message = f"{name} needs 0 < least <= most, got {low} and {high}"
                raise ProgramError(message)
        if not (self.headroom >= 1 and self.growth > 1 and self.patience >= 1):
            message = (
                "headroom must be at least 1, growth above 1 and patience at least 1; "
                f"got {self.headroom}, {self.growth} and {self.patience}"
            )
            raise ProgramError(message)
        if not 0 <= self.deadband < 1:
            message = f"deadband must be from 0 to below 1, got {self.deadband}"
            raise ProgramError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """What a worker should ask for from its next start on.

    Args:
        resources: What.
        reasons: Why it is not what it was; empty if it is.
    """

    resources: Resources
    reasons: tuple[str, ...]


def advise_resources(
    current: Resources, windows: Sequence[UseWindow], bounds: ResourceBounds
) -> Advice:
    """Returns what a worker should ask for.

    Memory that was too small grows at once, since the next start would end the same
    way. Less is asked for only when several windows in a row needed less.

    Args:
        current: What it asks for.
        windows: What it used since the request last changed, the oldest first.
        bounds: Within what bounds requests follow use.

    Example:
        >>> gib = 1 << 30
        >>> bounds = ResourceBounds(least=Resources(cpus=0.5, memory_bytes=gib),
        ...                         most=Resources(cpus=8, memory_bytes=8 * gib))
        >>> killed = UseWindow(cpus=1, memory_bytes=2 * gib, killed_for_memory=True)
        >>> advice = advise_resources(
        ...     Resources(cpus=1, memory_bytes=2 * gib), [killed], bounds)
        >>> advice.resources.memory_bytes / gib, advice.reasons
        (3.0, ('memory 2.0 -> 3.0 GiB: killed for memory at 2.0 GiB',))
    """
    reasons: list[str] = []
    # What nobody can have used is no measurement.
    windows = [
        window
        for window in windows
        if 0 <= window.cpus < math.inf and 0 <= window.memory_bytes < math.inf
    ]
    memory_bytes = _memory(current, windows, bounds, reasons)
    cpus = _cpus(current, windows, bounds, reasons)
    resources = Resources(cpus=cpus, memory_bytes=memory_bytes)
    return Advice(resources=resources, reasons=tuple(reasons))


def _memory(
    current: Resources,
    windows: Sequence[UseWindow],
    bounds: ResourceBounds,
    reasons: list[str],
) -> int:
    now = current.memory_bytes
    low, high = bounds.least.memory_bytes, bounds.most.memory_bytes
    if not windows:
        return now
    peak = max(window.memory_bytes for window in windows)
    needed = peak * bounds.headroom
    why = f"at most {_gib(peak)} GiB used"
    wanted: float = now
    if any(window.killed_for_memory for window in windows):
        wanted = max(now * bounds.growth, needed)
        why = f"killed for memory at {_gib(now)} GiB"
        if now >= high:
            reasons.append(f"memory stays at its bound of {_gib(now)} GiB: {why}")
            return now
    elif needed > now or _is_idle(needed, now, len(windows), bounds):
        wanted = needed
    found = _whole(wanted, _MEMORY_STEP)
    found = int(min(max(found if wanted != now else now, low), high))
    if found != now:
        reasons.append(f"memory {_gib(now)} -> {_gib(found)} GiB: {why}")
    return found


def _cpus(
    current: Resources,
    windows: Sequence[UseWindow],
    bounds: ResourceBounds,
    reasons: list[str],
) -> float:
    now = current.cpus
    # One that was killed has not been watched for long.
    whole = [window for window in windows if not window.killed_for_memory]
    recent = whole[-bounds.patience :]
    peak = max((window.cpus for window in recent), default=now)
    # One that uses all it may would perhaps use more.
    is_short = len(recent) == bounds.patience and all(
        window.cpus >= 0.95 * now for window in recent
    )
    wanted = now
    if is_short:
        wanted = now * bounds.growth
    elif _is_idle(peak * bounds.headroom, now, len(recent), bounds):
        wanted = peak * bounds.headroom
    found = _whole(wanted, _CPU_STEP) if wanted != now else now
    found = min(max(found, bounds.least.cpus), bounds.most.cpus)
    if found != now:
        reasons.append(f"processors {now:g} -> {found:g}: {peak:.2g} of {now:g} busy")
    return found


def _is_idle(
    needed: float, now: float, num_windows: int, bounds: ResourceBounds
) -> bool:
    return num_windows >= bounds.patience and needed < now * (1 - bounds.deadband)


def _whole(value: float, step: float) -> float:
    return math.ceil(value / step - 1e-9) * step


def _gib(number: float) -> str:
    return f"{number / (1 << 30):.1f}"
