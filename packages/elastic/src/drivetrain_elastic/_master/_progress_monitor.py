"""Progress monitor: which ranks are slow, and which are silent when all hang."""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_elastic.decisions.flight import LastOperation, find_silent
from drivetrain_elastic.decisions.progress import ProgressConfig, judge_progress
from drivetrain_elastic.decisions.stragglers import (
    Straggler,
    StragglerConfig,
    Window,
    judge_stragglers,
    section_scores,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_elastic.protocol import messages as pb

# A window that some rank does not tell of is judged when so many newer ones are there.
_NUM_LATE = 2
_FEWEST = 2
_FLIGHTS_S = 1.0
_MOST_STEPS = 1_000_000
# What a worker calls the time in which its script has the word.
_OUTSIDE = frozenset({"between steps", "ending"})


class Slowness(NamedTuple):
    """How a worker compares with the others in its slowest section.

    Attributes:
        ratio: Its time over the median of the others.
        section: Which section.
        sections_s: Its time in each.
    """

    ratio: float
    section: str
    sections_s: dict[str, float]


class ProgressMonitor:
    """Judges heartbeats of a world; used from one event loop.

    Args:
        stragglers: When a rank is slow.
        progress: When all hang.
    """

    def __init__(
        self,
        stragglers: StragglerConfig | None = None,
        progress: ProgressConfig | None = None,
    ) -> None:
        self._config = stragglers or StragglerConfig()
        self._progress = progress or ProgressConfig()
        self._members: tuple[str, ...] = ()
        self._epoch = 0
        self._open: dict[int, dict[str, pb.SectionWindow]] = {}
        self._windows: deque[Window] = deque(maxlen=self._config.num_windows)
        self._stragglers: dict[str, Straggler] = {}
        self._phases: dict[str, str] = {}
        self._last_step = 0
        self._last_step_s = time.monotonic()
        self._usual_s = 0.0
        self._is_hanging = False
        self._asked_s: float | None = None
        self._flights: dict[str, LastOperation | None] = {}
        self.slowness: dict[str, Slowness] = {}
        # In all worlds.
        self.step = 0

    def enter(self, epoch: int, members: Sequence[str]) -> None:
        """Notes the world whose ranks are compared from now on."""
        self._epoch, self._members = epoch, tuple(members)
        self._open.clear()
        self._windows.clear()
        self._stragglers.clear()
        self.slowness.clear()
        self._phases.clear()
        self._is_hanging, self._asked_s = False, None
        # Until a step is made it is not known how long one takes in this world.
        self._usual_s, self._last_step_s = 0.0, time.monotonic()
        self._last_step = 0

    # ---- slow ranks ----

    def take(self, workers: Iterable[pb.WorkerProgress]) -> list[tuple[int, Window]]:
        """Takes a heartbeat; returns the windows that are whole by it, with their steps."""
        for one in workers:
            if one.name not in self._members:
                continue
            self._phases[one.name] = one.phase
            # One that leaps is no count of steps.
            is_step = not self._last_step or one.step - self._last_step < _MOST_STEPS
            if one.step > self._last_step and is_step:
                self._last_step, self._last_step_s = one.step, time.monotonic()
                self.step = max(self.step, one.step)
                self._usual_s = one.step_s
                self._is_hanging = False
            if one.HasField("window") and one.window.epoch == self._epoch:
                self._open.setdefault(one.window.number, {})[one.name] = one.window
        return self._close_windows()

    def _close_windows(self) -> list[tuple[int, Window]]:
        closed = []
        for number in sorted(self._open):
            told = self._open[number]
            is_late = max(self._open) - number >= _NUM_LATE
            if len(told) < len(self._members) and not is_late:
                continue
            del self._open[number]
            if self._windows and number <= self._windows[-1].number:
                continue
            if len(told) < min(_FEWEST, len(self._members)):
                continue
            sections = {name: dict(one.sections_s) for name, one in told.items()}
            samples = {name: one.num_samples for name, one in told.items()}
            window = Window(number, sections, samples)
            self._windows.append(window)
            self._compare(window)
            closed.append((next(iter(told.values())).num_steps, window))
        return closed

    def _compare(self, window: Window) -> None:
        slowness: dict[str, Slowness] = {}
        for section, worker, score, is_long in section_scores(window, self._config):
            ratio = score.ratio if is_long else min(score.ratio, 1.0)
            if worker not in slowness or ratio > slowness[worker].ratio:
                own_s = dict(window.sections_s[worker])
                slowness[worker] = Slowness(ratio, section, own_s)
        self.slowness = slowness

    def news(self) -> tuple[list[Straggler], list[Straggler]]:
        """Returns the stragglers that are new, and those that are none any more."""
        now: dict[str, Straggler] = {}
        for one in judge_stragglers(list(self._windows), self._config):
            now.setdefault(one.worker, one)
        new = [one for name, one in now.items() if name not in self._stragglers]
        over = [one for name, one in self._stragglers.items() if name not in now]
        self._stragglers = now
        return new, over

    def is_slow(self, worker: str) -> bool:
        """Whether a worker counts as slow now."""
        return worker in self._stragglers

    def lost_s(self, num_steps: int, window: Window) -> float:
        """Returns what the steps of a window took longer for the slowest rank.

        Only what a straggler takes longer is lost; the rest is how ranks vary.

        Args:
            num_steps: Of the window.
            window: The window.
        """
        most_s = 0.0
        for one in self._stragglers.values():
            own = window.sections_s.get(one.worker, {}).get(one.section, 0.0)
            others = [
                sections.get(one.section, 0.0)
                for worker, sections in window.sections_s.items()
                if worker not in self._stragglers
            ]
            if others:
                most_s = max(most_s, own - statistics.median(others))
        return most_s * num_steps

    # ---- all that hang ----

    def look(self, now_s: float) -> tuple[str, float]:
        """Returns why all seem to hang, the first time; and when to look again, in s."""
        verdict = judge_progress(
            now_s,
            self._last_step_s,
            self._usual_s,
            self._progress,
            is_outside=not _OUTSIDE.isdisjoint(self._phases.values()),
        )
        if not verdict.is_hanging or self._is_hanging or len(self._members) == 0:
            return "", verdict.wait_s
        self._is_hanging = True
        return verdict.reason, verdict.wait_s

    def rest(self, now_s: float) -> None:
        """Notes that no step can be made now: too few workers are there."""
        self._last_step_s = now_s

    def ask(self, now_s: float) -> None:
        """Notes that all agents were asked what their workers did last."""
        self._asked_s, self._flights = now_s, {}

    def take_flights(self, flights: pb.Flights) -> None:
        """Takes what the workers of a node did last."""
        for one in flights.workers:
            last = one.operations[-1] if one.operations else None
            self._flights[one.name] = None if last is None else _last_operation(last)

    def find_silent(self, now_s: float) -> tuple[str, tuple[str, ...], float | None]:
        """Returns who keeps the others waiting, once all that answer have.

        Returns:
            What was found, empty if it is not known yet; the silent workers; and when to
            look again, in seconds, if something is still awaited.
        """
        if self._asked_s is None:
            return "", (), None
        missing = [name for name in self._members if name not in self._flights]
        wait_s = self._asked_s + _FLIGHTS_S - now_s
        if missing and wait_s > 0:
            return "", (), wait_s
        self._asked_s = None
        found = find_silent({name: self._flights.get(name) for name in self._members})
        return found.reason, found.silent, None


def _last_operation(one: pb.Operation) -> LastOperation:
    return LastOperation(
        one.epoch, one.step, one.collective, one.name, one.seconds, one.is_waiting
    )
