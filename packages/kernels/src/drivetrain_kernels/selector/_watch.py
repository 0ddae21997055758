"""Watches a committed candidate, and goes back to eager when it stops paying.

Recompilations cost nothing to watch: the backend counts them (`_compiled`). Step times
are watched by `tick`, a clock reading a step; medians are compared once a window.
"""

from __future__ import annotations

import logging
import statistics
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

logger = logging.getLogger(__name__)

WINDOW = 32
_SLOWER = 1.25  # times the first window's median, before eager is tried again
_WORTH = 1.02


def verdict(phase: str, medians: Sequence[float]) -> tuple[str, str]:
    """Returns what to do after a window, and why: a pure function.

    The first window says what is usual. When two windows in a row are slower by a
    quarter, one is run eager; the faster of both is kept.

    Args:
        phase: "compiled", or "eager" for a window that was run eager on trial.
        medians: The medians of all windows, the last one just ended.

    Returns:
        "stay", "try eager", "go back" to what was compiled, or "demote"; and why.

    Example:
        >>> verdict("compiled", [1.0, 1.4])
        ('stay', '')
        >>> verdict("compiled", [1.0, 1.4, 1.5])
        ('try eager', 'steps take 1.50 times as long as at first')
        >>> verdict("eager", [1.0, 1.4, 1.5, 1.1])
        ('demote', 'eager takes 0.73 of the time')
    """
    usual, last = medians[0], medians[-1]
    if phase == "eager":
        before = medians[-2]
        if last * _WORTH < before:
            return "demote", f"eager takes {last / before:.2f} of the time"
        return "go back", f"eager takes {last / before:.2f} of the time"
    if len(medians) > 2 and min(medians[-2:]) > _SLOWER * usual:
        return "try eager", f"steps take {last / usual:.2f} times as long as at first"
    return "stay", ""


class Watch:
    """Follows the steps of a loop; belongs to the thread that trains.

    Args:
        on: Switches the candidate on.
        off: Switches it off.
        window: Steps of a window.
        clock: Returns seconds.

    Attributes:
        demoted: Why the candidate was left for eager, or empty.
    """

    def __init__(
        self,
        on: Callable[[], None],
        off: Callable[[], None],
        *,
        window: int = WINDOW,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.demoted = ""
        self._ended = False
        self._on = on
        self._off = off
        self._window = window
        self._clock = clock
        self._times: list[float] = []
        self._medians: list[float] = []
        self._phase = "compiled"

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Ticks after each step of an optimizer."""
        optimizer.register_step_post_hook(lambda *_: self.tick())

    def tick(self) -> None:
        """Notes that a training step has ended; call it once a step."""
        if self._ended:
            return
        self._times.append(self._clock())
        if len(self._times) > self._window:
            self._close_window()

    def demote(self, why: str) -> None:
        """Leaves the candidate for eager, for good.

        Args:
            why: The reason.
        """
        if not self._ended:
            self.demoted = why
            self.stop()
            logger.warning("select: back to eager: %s", why)

    def stop(self) -> None:
        """Switches the candidate off, and watches no longer."""
        self._ended = True
        self._off()

    def _close_window(self) -> None:
        pairs = zip(self._times[1:], self._times, strict=False)
        self._medians.append(statistics.median(after - at for after, at in pairs))
        self._times = self._times[-1:]
        action, why = verdict(self._phase, self._medians)
        if action == "demote":
            self.demote(why)
        elif action == "try eager":
            logger.info("select: trying eager for %d steps: %s", self._window, why)
            self._off()
            self._phase = "eager"
        elif action == "go back":
            self._on()
            self._phase = "compiled"
            # What is usual has changed, and eager is no better.
            self._medians = [self._medians[-2]]
