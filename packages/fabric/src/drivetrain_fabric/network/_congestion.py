"""Flows through queues, step by step: marks, rate control, pauses, and who suffers.

A fluid model for some dozens of flows. Each link has a queue before it, which serves its
flows in the order of arrival: by their part of what waits. The network card of a sender
has no queue, it holds back what it may not send.

Priority flow control (PFC) pauses a link when what came over it and still waits in the
switch exceeds Xoff, and lets it go on below Xon. A paused link holds back all its flows,
those as well whose own way is free: victims. Its queue fills in turn, and pauses spread
towards the senders.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from drivetrain_fabric.network._dcqcn import Dcqcn, DcqcnSenders, Marking
from drivetrain_fabric.network._errors import FabricError
from drivetrain_fabric.network._seed import check_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from drivetrain_fabric.network._clos import FloatArray, IntArray
    from drivetrain_fabric.network._scenario import Pfc, Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class CongestionTrace:
    """What happened, in samples.

    Args:
        time_s: The end of each sample.
        goodput_bits_per_s: What each flow delivered, of shape (samples, flows).
        queue_bytes: How long each queue was on average, of shape (samples, links).
        mark_probability: How likely each queue marked, of shape (samples, links).
        paused: For which part of it each link was paused, of shape (samples, links).
        notifications: How many CNPs each sender got, of shape (samples, flows).
        lost_bytes: What found no room, in all.
    """

    time_s: FloatArray
    goodput_bits_per_s: FloatArray
    queue_bytes: FloatArray
    mark_probability: FloatArray
    paused: FloatArray
    notifications: FloatArray
    lost_bytes: float


def run_scenario(
    scenario: Scenario,
    *,
    seconds: float,
    dcqcn: Dcqcn | None = None,
    marking: Marking | None = None,
    pfc: Pfc | None = None,
    step_s: float = 1e-6,
    sample_s: float = 50e-6,
    feedback_s: float = 4e-6,
    packet_bytes: float = 1000,
    seed: int = 0,
) -> CongestionTrace:
    """Returns what happens to flows that all have as much to send as they can.

    Args:
        scenario: The links and the flows.
        seconds: How long it is watched.
        dcqcn: The rate control; None for senders that always send at full speed.
        marking: When switches mark; by default as the paper has it.
        pfc: When switches pause; None for never, so that full buffers lose.
        step_s: The step of time.
        sample_s: The length of a sample.
        feedback_s: How long a notification takes.
        packet_bytes: The size of a packet, for the number of marks.
        seed: Of which packets are marked.

    Raises:
        FabricError: A time or the seed makes no sense.

    Example:
        >>> from drivetrain_fabric.network import Pfc, incast
        >>> trace = run_scenario(incast(4), seconds=1e-3, pfc=Pfc())
        >>> trace.lost_bytes
        0.0
    """
    if not 0 < step_s <= sample_s <= seconds or feedback_s < 0 or packet_bytes <= 0:
        message = (
            "times must be 0 < step_s <= sample_s <= seconds, got "
            f"{step_s:g}, {sample_s:g} and {seconds:g}"
        )
        raise FabricError(message)
    check_seed(seed)
    run = _Run(scenario, dcqcn, marking or Marking(), pfc, step_s)
    run.feedback = deque([run.nobody] * round(feedback_s / step_s))
    generator = np.random.default_rng(seed)
    per_sample = round(sample_s / step_s)
    samples = []
    for _ in range(round(seconds / sample_s)):
        run.begin_sample()
        # All draws of a sample at once: one call instead of many.
        draws = generator.random((per_sample, len(scenario.paths)))
        for draw in draws:
            run.step(draw, packet_bytes)
        samples.append(run.end_sample(per_sample))
    columns = [np.stack(column) for column in zip(*samples, strict=True)]
    goodput, queue, probability, paused, notifications = columns
    return CongestionTrace(
        time_s=np.arange(1.0, len(samples) + 1) * (per_sample * step_s),
        goodput_bits_per_s=goodput,
        queue_bytes=queue,
        mark_probability=probability,
        paused=paused,
        notifications=notifications,
        lost_bytes=run.lost_bytes,
    )


class _Run:
    """The state of all queues, and one step of it."""

    def __init__(
        self,
        scenario: Scenario,
        dcqcn: Dcqcn | None,
        marking: Marking,
        pfc: Pfc | None,
        step_s: float,
    ) -> None:
        num = len(scenario.names)
        self._num, self._step_s, self._pfc, self._marking = num, step_s, pfc, marking
        self._dcqcn = dcqcn
        self._buffer_bytes = scenario.buffer_bytes
        # One link more, that carries all, stands for what comes after a path's end.
        self._capacity = np.append(np.array(scenario.bits_per_s) / 8 * step_s, np.inf)
        self._links = _padded(scenario.paths, num)
        first = self._links[:, 0]
        line = np.array(scenario.bits_per_s)[first] / 8
        starts = None
        if scenario.starts is not None:
            starts = np.minimum(np.array(scenario.starts) / 8, line)
        self._senders = DcqcnSenders(dcqcn or Dcqcn(), line, starts)
        self.nobody = np.zeros(len(first), bool)
        self.feedback: deque[NDArray[np.bool_]] = deque()
        self._since_notified = np.full(len(first), math.inf)
        self._waiting = np.zeros(self._links.shape)
        self._paused = np.zeros(num + 1, bool)
        delay = round(pfc.delay_s / step_s) if pfc else 0
        self._orders = deque([self._paused] * delay)
        self._wanted = self._paused
        self._is_last = np.zeros(self._links.shape, bool)
        lengths = [len(path) - 1 for path in scenario.paths]
        self._is_last[np.arange(len(lengths)), lengths] = True
        self.lost_bytes = 0.0
        self.begin_sample()

    def begin_sample(self) -> None:
        self._delivered = np.zeros(len(self._links))
        self._queues = np.zeros(self._num)
        self._marks = np.zeros(self._num)
        self._pauses = np.zeros(self._num)
        self._notified = np.zeros(len(self._links))

    def end_sample(self, num_steps: int) -> tuple[FloatArray, ...]:
        return (
            self._delivered * 8 / (num_steps * self._step_s),
            self._queues / num_steps,
            self._marks / num_steps,
            self._pauses / num_steps,
            self._notified,
        )

    def step(self, draw: FloatArray, packet_bytes: float) -> None:
        self._waiting[:, 0] = self._senders.rates * self._step_s
        totals = self._sum(self._waiting)
        room = np.where(self._paused, 0.0, self._capacity)
        served = np.divide(room, totals, out=np.ones_like(totals), where=totals > room)
        served[self._paused] = 0.0
        moved = self._waiting * served[self._links]
        queues = (totals * (1 - served))[: self._num]
        # What a card holds back is not in the fabric: only switches mark.
        queues[self._links[:, 0]] = 0
        marks = self._marking.probability(queues)

        self._waiting -= moved
        self._waiting[:, 1:] += moved[:, :-1] * ~self._is_last[:, :-1]
        self._waiting[:, 0] = 0
        self._delivered += (moved * self._is_last).sum(axis=1)
        self._keep_within_buffers()
        self._control(marks, moved, draw, packet_bytes)
        self._queues += queues
        self._marks += marks
        self._pauses += self._paused[: self._num]

    def _sum(self, amounts: FloatArray) -> FloatArray:
        """Returns what waits before each link."""
        sums = np.bincount(self._links.ravel(), amounts.ravel(), self._num + 1)
        return sums.astype(np.float64)

    def _keep_within_buffers(self) -> None:
        """Drops what finds no room, and pauses the links that fill a switch."""
        came_over, inside = self._links[:, :-1], self._waiting[:, 1:]
        held = np.bincount(came_over.ravel(), inside.ravel(), minlength=self._num + 1)
        over = held > self._buffer_bytes
        if over.any():
            kept = np.where(over, self._buffer_bytes / np.maximum(held, 1e-9), 1.0)
            self.lost_bytes += float((held - self._buffer_bytes)[over].sum())
            inside *= kept[came_over]
        if self._pfc is None:
            return
        wanted = self._wanted & (held >= self._pfc.xon_bytes)
        self._wanted = wanted | (held > self._pfc.xoff_bytes)
        self._orders.append(self._wanted)
        self._paused = self._orders.popleft()

    def _control(
        self,
        marks: FloatArray,
        moved: FloatArray,
        draw: FloatArray,
        packet_bytes: float,
    ) -> None:
        """Sends notifications for marks, and lets senders react to those that came."""
        if self._dcqcn is None:
            return
        unmarked = np.append(1 - marks, 1.0)[self._links]
        clean = np.prod(unmarked ** (moved / packet_bytes), axis=1)
        self._since_notified += self._step_s
        due = self._since_notified >= self._dcqcn.notification_s
        notify = (draw > clean) & due
        self._since_notified[notify] = 0
        self.feedback.append(notify)
        arrived = self.feedback.popleft()
        self._notified += arrived
        self._senders.notify(arrived)
        self._senders.advance(self._step_s, moved[:, 0])


def _padded(paths: Sequence[Sequence[int]], num: int) -> IntArray:
    longest = max(map(len, paths))
    return np.array([[*path, *[num] * (longest - len(path))] for path in paths])
