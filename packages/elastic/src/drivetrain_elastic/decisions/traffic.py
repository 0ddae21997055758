"""Whether the traffic of a network port has dropped, by what was usual before.

Training sends in bursts: gradients at the end of a step, nothing in between. So no rate
says that all is well, and no silence that something is wrong. What holds for traffic that
comes again and again is an envelope: in any stretch of w seconds at least m(w) bytes were
sent, where m is zero for stretches that fit between two bursts. Two things are a drop:

- a burst is overdue: in a stretch half as long again as one that always held some, and a
  moment more, there was next to nothing. Bursts that are at most 0.4 s apart are missed
  within a second; others when their usual pause has lasted half as long again;
- there is less of it: stretches that are long enough to be all alike had more than twice
  as much.

Samples are numbers that a counter had, and when. Counters that are missing say nothing:
no samples are no silence. What is sent before the first steps, as the model to those that
join, is not what is usual then: whoever watches begins after it, or calls `restart`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from drivetrain_core import ProgramError

# Stretches whose traffic differs by less are alike.
_ALIKE = 1.5
# Pauses between bursts that fit into a stretch that is long.
_BURSTS = 4
# Buckets that have to be as usual before a drop is over.
_LEAST_FLAGGED = 20


class TrafficLevel(StrEnum):
    """How much traffic there is, against what is usual."""

    #: What is usual is not known yet.
    LEARNING = "learning"
    USUAL = "usual"
    #: There is much less than usual.
    DROPPED = "dropped"
    #: There is none, and there should be.
    SILENT = "silent"
    #: The job does something else.
    PAUSED = "paused"
    #: The counters cannot be read.
    UNSEEN = "unseen"


class TrafficVerdict(NamedTuple):
    """What `judge_traffic` decided.

    Attributes:
        level: How much traffic there is.
        reason: Why, for people.
        rate: Bytes per second, over the stretch that decided.
        usual: The least that was sent in such a stretch before, in bytes per second.
    """

    level: TrafficLevel
    reason: str
    rate: float = 0.0
    usual: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficConfig:
    """What counts as a drop.

    Args:
        bucket_s: Samples are added up over so long.
        learn_s: How much of it has to be seen before anything is judged.
        memory_s: For how long what was usual is remembered.
        drop: Traffic has dropped below this part of the least that was usual.
        slack: So many times as long as usual a burst may be awaited.
        grace_s: And so much longer.
        steady_s: Shorter stretches are not looked at for less traffic.
        silence: What is sent below this part of the mean is nothing: heartbeats.
        unseen_s: Without samples for so long, nothing is judged.

    Raises:
        ProgramError: A number is not one, or they contradict each other.
    """

    bucket_s: float = 0.05
    learn_s: float = 10.0
    memory_s: float = 120.0
    drop: float = 0.5
    slack: float = 1.5
    grace_s: float = 0.25
    steady_s: float = 0.4
    silence: float = 0.01
    unseen_s: float = 0.5

    def __post_init__(self) -> None:
        """Checks the numbers."""
        times = (
            self.bucket_s,
            self.learn_s,
            self.memory_s,
            self.unseen_s,
            self.grace_s,
            self.steady_s,
        )
        if not all(math.isfinite(one) and one > 0 for one in times):
            message = f"times must be finite and more than 0 seconds, got {times}"
            raise ProgramError(message)
        if not self.bucket_s * 10 <= self.learn_s <= self.memory_s:
            message = (
                "learn_s must be from 10 times bucket_s to memory_s, got "
                f"{self.learn_s}, {self.bucket_s} and {self.memory_s}"
            )
            raise ProgramError(message)
        if not (0 < self.silence < self.drop < 1 <= self.slack < math.inf):
            message = (
                "0 < silence < drop < 1 <= slack must hold, got silence "
                f"{self.silence}, drop {self.drop} and slack {self.slack}"
            )
            raise ProgramError(message)


@dataclass(kw_only=True, slots=True)
class TrafficState:
    """The traffic of a port, in buckets of equal length.

    Attributes:
        config: What counts as a drop.
        usual: Bytes of each bucket that was found usual; the oldest first.
        recent: Bytes of the buckets since then.
        run: How many of the last buckets follow each other without a gap.
        flagged: The longest stretch, in buckets, that is looked at while a drop lasts; 0
            while none does.
        bucket: Bytes of the bucket that is being filled, and when it began.
        last: The last sample: when, and what the counter said.
        seen_s: When a counter was read last.
        is_paused: Whether the job does something else.
    """

    config: TrafficConfig = field(default_factory=TrafficConfig)
    usual: deque[float] = field(default_factory=deque)
    recent: deque[float] = field(default_factory=deque)
    run: int = 0
    flagged: int = 0
    bucket: tuple[float, float] | None = None
    last: tuple[float, float] | None = None
    seen_s: float | None = None
    is_paused: bool = False

    def add(self, at_s: float, num_bytes: float | None) -> None:
        """Takes in a sample.

        Args:
            at_s: When, on a clock that does not go back. Samples that are older than the
                last one are left out.
            num_bytes: What the counter said; None if it could not be read. One that is
                less than before has begun anew.
        """
        if num_bytes is None or not math.isfinite(at_s):
            return
        before, self.last, self.seen_s = self.last, (at_s, num_bytes), at_s
        if before is None or self.bucket is None:
            self.bucket = (0.0, at_s)
            return
        span_s = at_s - before[0]
        if span_s <= 0:
            self.last = before
            return
        if span_s > self.config.unseen_s or num_bytes < before[1]:
            # Nobody knows what was sent in between.
            self._break()
            self.bucket = (0.0, at_s)
            return
        if not self.is_paused:
            self._spread(before[0], span_s, num_bytes - before[1])

    def _spread(self, from_s: float, span_s: float, num_bytes: float) -> None:
        """Deals bytes out to the buckets of the time in which they were sent."""
        assert self.bucket is not None
        filled, began_s = self.bucket
        end_s, width_s = from_s + span_s, self.config.bucket_s
        while end_s >= began_s + width_s:
            part_s = began_s + width_s - max(from_s, began_s)
            filled += num_bytes * part_s / span_s
            self.recent.append(filled)
            self.run += 1
            filled, began_s = 0.0, began_s + width_s
        filled += num_bytes * (end_s - max(from_s, began_s)) / span_s
        self.bucket = (filled, began_s)

    def pause(self) -> None:
        """Notes that the job does something else: it saves, waits, or makes a new world."""
        self.is_paused = True
        self._break()

    def resume(self) -> None:
        """Notes that the job trains again, as it did before."""
        self.is_paused = False
        self._break()
        self.bucket = self.last = None

    def restart(self) -> None:
        """Forgets what was usual: the job trains with others, or something else."""
        self.usual.clear()
        self.resume()

    def _break(self) -> None:
        """Forgets what has not been judged; the next stretches begin anew."""
        self.recent.clear()
        self.run = self.flagged = 0


def judge_traffic(now_s: float, state: TrafficState) -> TrafficVerdict:
    """Decides whether a port has less traffic than usual.

    What is found usual is added to what is remembered; a drop is not, so that it stays
    one for as long as it lasts.

    Args:
        now_s: The time, on the clock of the samples.
        state: The traffic so far, which this brings up to date.

    Example:
        >>> state = TrafficState(config=TrafficConfig(learn_s=2.0))
        >>> sent = 0
        >>> for tick in range(400):  # bursts of 0.1 s, five times a second
        ...     sent += 1000 * (tick % 20 < 10) * (tick < 320)
        ...     state.add(tick / 100, sent)
        ...     verdict = judge_traffic(tick / 100, state)
        >>> verdict.level
        <TrafficLevel.SILENT: 'silent'>
    """
    config = state.config
    if state.is_paused:
        return TrafficVerdict(TrafficLevel.PAUSED, "the job does not train")
    if state.seen_s is None or now_s - state.seen_s > config.unseen_s:
        return TrafficVerdict(TrafficLevel.UNSEEN, "its counters were not read")
    needed = round(config.learn_s / config.bucket_s)
    if len(state.usual) + len(state.recent) < needed:
        seen_s = (len(state.usual) + len(state.recent)) * config.bucket_s
        reason = f"{seen_s:.1f} s of {config.learn_s:g} s are known"
        return TrafficVerdict(TrafficLevel.LEARNING, reason)
    if len(state.usual) < needed:
        _remember(state, needed - len(state.usual))
    most = round(config.memory_s / config.bucket_s)
    while len(state.recent) > most:
        state.recent.popleft()
    verdict = _compared(state)
    if verdict.level != TrafficLevel.USUAL:
        return verdict
    if state.flagged:
        # It is back. What it was in between is not what is usual.
        state.recent.clear()
        state.run = state.flagged = 0
    else:
        _remember(state, len(state.recent))
    return verdict


def _remember(state: TrafficState, num: int) -> None:
    for _ in range(num):
        state.usual.append(state.recent.popleft())
    most = round(state.config.memory_s / state.config.bucket_s)
    while len(state.usual) > most:
        state.usual.popleft()


def _compared(state: TrafficState) -> TrafficVerdict:
    """Compares the last stretches, of each length, with all those before."""
    config = state.config
    usual = np.fromiter(state.usual, float)
    total = np.concatenate(([0.0], np.cumsum(usual)))
    mean = float(total[-1]) / len(usual)
    if mean == 0.0:
        return TrafficVerdict(TrafficLevel.USUAL, "no traffic is usual here")
    recent = np.fromiter(state.recent, float)
    until = np.concatenate((total, total[-1] + np.cumsum(recent)))
    longest = state.flagged or state.run
    pause = 0
    for size in _sizes(len(usual) // 4):
        overdue = math.ceil(size * config.slack + config.grace_s / config.bucket_s)
        for span, part in ((size, config.drop), (overdue, config.drop / 2)):
            before = len(usual) - max(0, span - len(recent)) + 1
            if span > min(longest, state.run) or before <= 2 * size:
                continue
            stretches = total[size:before] - total[: before - size]
            least, greatest = float(stretches.min()), float(stretches.max())
            # A stretch in which next to nothing may be sent says nothing.
            if least < size * mean * 0.1:
                pause = size
                continue
            # Stretches with several bursts: a step that takes longer is no drop.
            is_short = size < max(_BURSTS * pause, config.steady_s / config.bucket_s)
            if span == size and (is_short or greatest > least * _ALIKE):
                continue
            sent = float(until[-1] - until[-1 - span])
            if sent < part * least:
                _flag(state, span)
                return _drop(sent, span, least / size, mean, config)
    if state.flagged > state.run:
        # Too little was seen since the counters came back.
        return TrafficVerdict(TrafficLevel.DROPPED, "it is not known to be back")
    return TrafficVerdict(
        TrafficLevel.USUAL,
        "as usual",
        rate=mean / config.bucket_s,
        usual=mean / config.bucket_s,
    )


def _flag(state: TrafficState, span: int) -> None:
    """Notes a drop, and takes it out of what was usual."""
    if state.flagged:
        return
    state.flagged = max(2 * span, _LEAST_FLAGGED)
    while len(state.recent) < span and state.usual:
        state.recent.appendleft(state.usual.pop())


def _drop(
    sent: float, span: int, least: float, mean: float, config: TrafficConfig
) -> TrafficVerdict:
    """Returns what is said of a stretch with too little in it."""
    span_s = span * config.bucket_s
    rate, usual = sent / span_s, least / config.bucket_s
    is_silent = sent < span * mean * config.silence
    level = TrafficLevel.SILENT if is_silent else TrafficLevel.DROPPED
    what = "nothing" if is_silent else f"{rate:.3g} B/s"
    reason = f"{what} in the last {span_s:.2f} s, usual are {usual:.3g} B/s or more"
    return TrafficVerdict(level, reason, rate, usual)


def _sizes(most: int) -> list[int]:
    """Returns lengths of stretches, in buckets, each a fifth longer than the one before."""
    sizes, size = [], 1
    while size <= most:
        sizes.append(size)
        size = max(size + 1, round(size * 1.2))
    return sizes
