"""Faults at random times, for tests that run for long."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_core import ProgramError
from drivetrain_health.faults._chaos_plan import strikes
from drivetrain_health.faults._errors import TargetGoneError
from drivetrain_health.faults._kill import kill
from drivetrain_health.faults._slow import slow
from drivetrain_health.faults._stop import stop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

    from drivetrain_health.faults._chaos_plan import ChaosSpec, Strike

logger = logging.getLogger(__name__)

Act = Callable[[Any, "Strike"], AbstractContextManager[object]]
"""Makes a fault of a target and a strike: a context manager that heals at its end."""

_LEAST_SHARE, _MOST_SHARE = 0.05, 0.5


@contextmanager
def _kill(target: Any, _: Strike) -> Iterator[None]:
    kill(target)
    yield


def _stop(target: Any, _: Strike) -> AbstractContextManager[None]:
    return stop(target)


def _slow(target: Any, strike: Strike) -> AbstractContextManager[None]:
    return slow(target, _MOST_SHARE - strike.severity * (_MOST_SHARE - _LEAST_SHARE))


_ACTS: dict[str, Act] = {"kill": _kill, "slow": _slow, "stop": _stop}
#: Of faults that a `Chaos` makes by itself.
KINDS = tuple(sorted(_ACTS))


class Happening(NamedTuple):
    """Something that chaos has done.

    Attributes:
        at_s: When, in seconds since the beginning.
        what: `begun`, `healed`, or `skipped`.
        strike: The fault.
        target: Whom it hit; None if nobody.
        reason: Why it was skipped.
    """

    at_s: float
    what: str
    strike: Strike
    target: Any
    reason: str = ""


class Player:
    """Carries faults out as time passes; it has no clock, and waits for nothing.

    Args:
        plan: The faults that are to come, without end.
        targets: Returns those that there are now.
        acts: Makes a fault, by kind.

    Attributes:
        log: What has happened.
    """

    def __init__(
        self,
        plan: Iterator[Strike],
        targets: Callable[[], Sequence[Any]],
        acts: Mapping[str, Act],
    ) -> None:
        self.log: list[Happening] = []
        self._plan = plan
        self._targets = targets
        self._acts = acts
        self._next = next(plan)
        # What goes on, the first to end first; numbered, since strikes may be alike.
        self._numbers = itertools.count()
        self._going: list[tuple[float, int, Strike, Any, ExitStack]] = []

    def advance(self, now_s: float) -> float:
        """Does what is due, and returns when the next is."""
        while True:
            end_s = self._going[0][0] if self._going else float("inf")
            due_s = min(end_s, self._next.at_s)
            if due_s > now_s:
                return due_s
            if end_s <= self._next.at_s:
                self._end(now_s)
            else:
                strike, self._next = self._next, next(self._plan)
                self._begin(strike, now_s)

    def close(self, now_s: float) -> None:
        """Heals all that goes on, whatever one of them raises."""
        with ExitStack() as stack:
            for _ in range(len(self._going)):
                stack.callback(self._end, now_s)

    def _begin(self, strike: Strike, now_s: float) -> None:
        target, why = self._find(strike)
        if not why:
            healing = ExitStack()
            try:
                healing.enter_context(self._acts[strike.kind](target, strike))
            except TargetGoneError as error:
                why = str(error)
            else:
                self._note(Happening(now_s, "begun", strike, target))
                # Of the time that was planned: the next one for the target may follow.
                end_s = strike.at_s + strike.lasts_s
                entry = (end_s, next(self._numbers), strike, target, healing)
                heapq.heappush(self._going, entry)
        if why:
            self._note(Happening(now_s, "skipped", strike, target, why))

    def _find(self, strike: Strike) -> tuple[Any, str]:
        """Returns the target of a strike, and why it is spared."""
        targets = self._targets()
        if strike.slot >= len(targets):
            return None, f"there are {len(targets)} targets"
        target = targets[strike.slot]
        if any(target == other for _, _, _, other, _ in self._going):
            return target, "another fault goes on"
        return target, ""

    def _end(self, now_s: float) -> None:
        _, _, strike, target, healing = heapq.heappop(self._going)
        try:
            healing.close()
        finally:
            if strike.lasts_s:
                self._note(Happening(now_s, "healed", strike, target))

    def _note(self, one: Happening) -> None:
        self.log.append(one)
        because = f": {one.reason}" if one.reason else ""
        kind, target = one.strike.kind, one.target
        logger.info("%.3f s: %s %s of %s%s", one.at_s, one.what, kind, target, because)


class Chaos:
    """Makes faults at random times while a block runs; a context manager.

    At its end everything is healed, whatever happens. What has ended is skipped.

    Args:
        targets: Processes, or whatever the acts understand; or what returns those that
            there are at the time.
        spec: What kind of chaos there is.
        acts: Your own kinds of faults, by name.

    Attributes:
        log: What has happened so far, a list of `Happening`.

    Raises:
        ProgramError: A kind has no act.

    Example:
        >>> import subprocess
        >>> from drivetrain_health.faults import ChaosSpec
        >>> workers = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
        >>> spec = ChaosSpec(seed=1, num_targets=2, every_s=0.01, kinds={"kill": 1})
        >>> with Chaos(workers, spec) as chaos:
        ...     codes = [worker.wait() for worker in workers]
        >>> codes, chaos.log[0].what
        ([-9, -9], 'begun')
    """

    def __init__(
        self,
        targets: Sequence[Any] | Callable[[], Sequence[Any]],
        spec: ChaosSpec,
        *,
        acts: Mapping[str, Act] | None = None,
    ) -> None:
        every: dict[str, Act] = {**_ACTS, **(acts or {})}
        unknown = sorted(set(spec.kinds) - set(every))
        if unknown:
            message = (
                f"faults are of the kinds {', '.join(sorted(every))}, not "
                f"{', '.join(unknown)}: pass acts= for your own"
            )
            raise ProgramError(message)
        find = targets if callable(targets) else lambda: targets
        self._player = Player(strikes(spec), find, every)
        self._began_s = 0.0
        self._ending = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(
            target=self._run, name="drivetrain-chaos", daemon=True
        )

    @property
    def log(self) -> list[Happening]:
        """What has happened so far."""
        return list(self._player.log)

    def wait(self, timeout_s: float) -> bool:
        """Waits; returns whether chaos has ended early, by an error."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        if self._errors:
            raise self._errors.pop()

    def _run(self) -> None:
        try:
            wait_s = 0.0
            while not self._ending.wait(wait_s):
                now_s = self._now_s()
                wait_s = max(0.0, self._player.advance(now_s) - now_s)
        except BaseException as error:  # noqa: BLE001
            # Whoever leaves the block gets it.
            self._errors.append(error)
        finally:
            try:
                self._player.close(self._now_s())
            except BaseException as error:  # noqa: BLE001
                self._errors.append(error)

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s
