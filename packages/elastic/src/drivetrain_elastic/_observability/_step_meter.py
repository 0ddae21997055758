"""Step meter: where a rank's time goes, by section, by world, and the operation in hand."""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from drivetrain_elastic._observability._sections import (
    APPLY,
    COMPUTE,
    OUTSIDE,
    OWN,
    SAVE,
    WAIT,
)
from drivetrain_elastic.decisions.time_ledger import Account

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from drivetrain_elastic._observability._flight_record import FlightRecord

_NUM_WORLDS = 4
_MOST_SECTIONS = 32
# How long a window is shown at least: some beats.
_WINDOW_S = 1.5
_NAME_CHARACTERS = 64


class SectionWindow(NamedTuple):
    """The same steps on all ranks, as this one has made them.

    Attributes:
        number: Which steps: from `number * num_steps + 1` on.
        epoch: Of the world in which all of them were made.
        num_steps: How many they are.
        sections_s: The median time of a step in each section of this rank's own.
        step_s: The median time of a whole step.
        num_samples: That this rank had in a step, on average.
    """

    number: int
    epoch: int
    num_steps: int
    sections_s: dict[str, float]
    step_s: float
    num_samples: float = 0.0


class Times(NamedTuple):
    """What a rank says of its time.

    Attributes:
        accounts: Of the last worlds, by their epochs.
        window: The last one that is whole; None before it.
    """

    accounts: dict[int, Account] = {}
    window: SectionWindow | None = None


class StepMeter:
    """Measures one rank; used from the thread of its training, but for `times`.

    Args:
        device: On which it computes. What a GPU does is timed by events in its stream.
        window_steps: How many steps make up a window.
        told_s: How long a window is shown at least; of short ones not all are.
        count: Returns how many collectives this rank has entered, in all worlds.
        record: Where each operation is noted; None for nowhere.
        clock: In seconds.

    Example:
        >>> meter = StepMeter(torch.device("cpu"), window_steps=2)
        >>> meter.find_world()
        >>> meter.enter_world(1, 0)
        >>> for step in (1, 2):
        ...     meter.begin_step(step)
        ...     with meter.section("data"):
        ...         pass
        ...     meter.wait()
        ...     meter.end_step()
        >>> window = meter.times().window
        >>> window.number, sorted(window.sections_s)
        (0, ['apply', 'compute', 'data', 'outside'])
    """

    def __init__(
        self,
        device: torch.device,
        *,
        window_steps: int = 10,
        told_s: float = _WINDOW_S,
        count: Callable[[], int] = int,
        record: FlightRecord | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._window_steps = window_steps
        self._told_s = told_s
        self._count = count
        self._record = record
        self._device_timer = _DeviceTimer(device) if device.type != "cpu" else None
        self._epoch = self._step = 0
        self._base = 0
        self._accounts: dict[int, Account] = {}
        self._times = Times()
        # Of the step in hand, and of the window.
        self._section, self._since_s = "", clock()
        self._spent: dict[str, float] = {}
        self._steps: list[tuple[dict[str, float], float]] = []
        # In all steps, before the last one, and before those of the window.
        self._num_samples = self._num_samples_before = self._samples_before = 0
        self._is_in_step = False
        self._began_s = self._ended_s = 0.0
        # Of the world before.
        self._forming_since_s: float | None = None
        self._cut_s = 0.0
        self._cut_step = 0
        self._usual_s = 0.0

    def times(self) -> Times:
        """Returns what this rank says of its time; safe in any thread."""
        return self._times

    # ---- worlds ----

    def find_world(self) -> None:
        """Notes that there is a world for this rank, which it now enters."""
        if self._forming_since_s is None:
            self._forming_since_s = self._clock()
        self._note("entering a world", is_waiting=False)

    def leave_world(self) -> None:
        """Notes that the world is over, with the step in hand, if any."""
        now_s = self._clock()
        self._cut_s = now_s - self._began_s if self._is_in_step else 0.0
        self._cut_step = self._step if self._is_in_step else 0
        if self._forming_since_s is None:
            self._forming_since_s = now_s
        self._is_in_step = False
        self._steps.clear()
        self._num_samples = self._num_samples_before
        self._note("waiting for a world", is_waiting=False)

    def enter_world(self, epoch: int, step: int, num_read: int = 0) -> None:
        """Notes that this rank is in a world with all others.

        Args:
            epoch: Of the world.
            step: The last one that counts: whether that which was cut off does.
            num_read: How many samples the training has read with it.
        """
        self._epoch, self._base = epoch, self._count()
        self._step = step
        account = self._accounts.setdefault(epoch, Account())
        if self._cut_step and self._cut_step <= step:
            # Its gradients were there: what it took longer than usual went to noticing.
            usual_s = min(self._cut_s, self._usual_s or self._cut_s)
            account = account._replace(
                steps_s=account.steps_s + usual_s,
                forming_s=account.forming_s + self._cut_s - usual_s,
            )
        else:
            account = account._replace(redone_s=account.redone_s + self._cut_s)
        self._cut_s, self._cut_step = 0.0, 0
        self._accounts[epoch] = account._replace(
            first_step=step, last_step=step, first_sample=num_read, last_sample=num_read
        )
        for old in sorted(self._accounts)[:-_NUM_WORLDS]:
            del self._accounts[old]
        self._spent = {}
        self._enter("", self._clock())

    # ---- steps ----

    def begin_step(self, step: int) -> None:
        """Begins a step: from now on this rank computes."""
        now_s = self._clock()
        account = self._accounts.get(self._epoch, Account())
        if self._forming_since_s is not None:
            forming_s = account.forming_s + now_s - self._forming_since_s
            account = account._replace(forming_s=forming_s)
            self._forming_since_s = None
        elif self._ended_s:
            outside_s = now_s - self._ended_s
            account = account._replace(outside_s=account.outside_s + outside_s)
            # What had a name of its own there is not counted twice.
            named_s = sum(self._spent.values())
            self._spent[OUTSIDE] = max(0.0, outside_s - named_s)
        self._accounts[self._epoch] = account
        self._step, self._is_in_step, self._began_s = step, True, now_s
        if self._device_timer is not None:
            self._device_timer.begin()
        self._enter(COMPUTE, now_s)
        self._note("computing", is_waiting=False)

    def section(self, name: str) -> AbstractContextManager[None]:
        """Counts what is done within under a name of its own, in place of computing."""
        name = name.encode(errors="replace").decode()[:_NAME_CHARACTERS]
        return self._within(name, name, is_waiting=False)

    def add_samples(self, num: int) -> None:
        """Notes that this rank computes on so many samples, in the step in hand."""
        self._num_samples += num

    def wait(self, name: str = "all-reduce") -> None:
        """Notes that this rank has computed all, and waits for the others."""
        if self._device_timer is not None and self._section == COMPUTE:
            self._device_timer.end()
        self._enter(WAIT, self._clock())
        self._note(name, is_waiting=True)

    def waiting(self, name: str) -> AbstractContextManager[None]:
        """Counts what is done within as waiting, and goes on as before."""
        return self._within(WAIT, name, is_waiting=True)

    @contextlib.contextmanager
    def _within(self, section: str, name: str, *, is_waiting: bool) -> Iterator[None]:
        before = self._section
        self._enter(section, self._clock())
        self._note(name, is_waiting=is_waiting)
        try:
            yield
        finally:
            self._enter(before, self._clock())
            self._note("computing", is_waiting=False)

    def apply(self) -> None:
        """Notes that this rank applies the update."""
        self._enter(APPLY, self._clock())
        self._note("applying", is_waiting=False)

    def save(self) -> None:
        """Notes that this rank saves its state, or waits until it may go on."""
        self._enter(SAVE, self._clock())
        self._note("saving", is_waiting=False)

    def end_step(self, num_read: int = 0) -> None:
        """Ends a step, which counts.

        Args:
            num_read: How many samples the training has read with it.
        """
        now_s = self._clock()
        self._enter("", now_s)
        spent, self._spent = self._spent, {}
        if self._device_timer is not None:
            computed_s = self._device_timer.seconds()
            waited_s = max(0.0, computed_s - spent.get(COMPUTE, 0.0))
            spent[COMPUTE] = max(spent.get(COMPUTE, 0.0), computed_s)
            spent[WAIT] = max(0.0, spent.get(WAIT, 0.0) - waited_s)
        step_s = now_s - self._began_s
        saving_s = spent.get(SAVE, 0.0)
        account = self._accounts.get(self._epoch, Account())
        self._accounts[self._epoch] = account._replace(
            steps_s=account.steps_s + step_s - saving_s,
            saving_s=account.saving_s + saving_s,
            last_step=self._step,
            last_sample=num_read,
        )
        self._is_in_step, self._ended_s = False, now_s
        self._usual_s = (
            step_s if not self._usual_s else (self._usual_s * 7 + step_s) / 8
        )
        self._note("between steps", is_waiting=False)
        self._keep(spent, step_s)

    def _keep(self, spent: dict[str, float], step_s: float) -> None:
        """Adds a step to its window, and publishes what there is to say."""
        window = self._times.window
        if (self._step - 1) % self._window_steps == 0:
            self._steps.clear()
        if not self._steps:
            self._samples_before = self._num_samples_before
        self._num_samples_before = self._num_samples
        self._steps.append((spent, step_s))
        if self._step % self._window_steps == 0:
            if len(self._steps) == self._window_steps and self._is_told():
                window = self._window()
            self._steps.clear()
        self._times = Times(dict(self._accounts), window)

    def _is_told(self) -> bool:
        """Whether the window that is whole now is one of those that are told.

        Of short steps not all windows are, or beats would miss some, and others on each
        rank. Ranks that differ by a factor of two still tell some of the same.
        """
        longest_s = self._window_steps * max(self._usual_s, 1e-6)
        every = 1
        while every * longest_s < self._told_s:
            every *= 2
        return (self._step // self._window_steps - 1) % every == 0

    def _window(self) -> SectionWindow:
        names = {name for spent, _ in self._steps for name in spent} - {WAIT, SAVE}
        kept = sorted(names | OWN)[:_MOST_SECTIONS]
        sections_s = {
            name: statistics.median(spent.get(name, 0.0) for spent, _ in self._steps)
            for name in kept
        }
        return SectionWindow(
            number=self._step // self._window_steps - 1,
            epoch=self._epoch,
            num_steps=self._window_steps,
            sections_s=sections_s,
            step_s=statistics.median(step_s for _, step_s in self._steps),
            num_samples=(self._num_samples - self._samples_before) / self._window_steps,
        )

    # ---- the operation in hand ----

    def _enter(self, section: str, now_s: float) -> None:
        if self._section:
            spent_s = self._spent.get(self._section, 0.0) + now_s - self._since_s
            self._spent[self._section] = spent_s
        self._section, self._since_s = section, now_s

    def _note(self, name: str, *, is_waiting: bool) -> None:
        if self._record is not None:
            entered = self._count() - self._base
            self._record.write(
                self._epoch, self._step, entered, name, is_waiting=is_waiting
            )


class _DeviceTimer:
    """Times what a device does in a step, by events in its stream.

    Args:
        device: Which one.
    """

    def __init__(self, device: torch.device) -> None:
        # Another accelerator than a GPU has the same.
        make: Any = torch.Event
        self._began = make(device, enable_timing=True)
        self._ended = make(device, enable_timing=True)
        self._has_both = False

    def begin(self) -> None:
        self._began.record()
        self._has_both = False

    def end(self) -> None:
        self._ended.record()
        self._has_both = True

    def seconds(self) -> float:
        """Returns how long the last step took; the reduction after it has waited for it."""
        if not self._has_both:
            return 0.0
        self._ended.synchronize()
        return float(self._began.elapsed_time(self._ended)) / 1e3
