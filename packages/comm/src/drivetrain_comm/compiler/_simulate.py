"""How long transfers take on a graph: events in time, with wires that are shared.

To each peer a rank sends one message after the other. A message takes its part of every
wire on its way, as fairly as TCP or a switch would share them, and arrives later by the
delay of the way, while the next one is on its way already.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drivetrain_comm.compiler._errors import ScheduleError
from drivetrain_comm.compiler._flows import fair_rates
from drivetrain_comm.compiler._graph import added
from drivetrain_comm.compiler._verify import transfers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_comm.compiler._graph import LinkGraph
    from drivetrain_comm.compiler._schedule import Schedule, Transfer

_LEAST = 1e-9  # of a message: rounding leaves less


def simulate(
    schedule: Schedule,
    graph: LinkGraph,
    size_bytes: float,
    *,
    message_s: float = 0.0,
) -> float:
    """Returns the seconds until the last rank is done.

    Args:
        schedule: What is right already.
        graph: What it runs on.
        size_bytes: Of the vector, which is cut into equal chunks.
        message_s: How long a message takes beside its bytes, whatever its length.

    Raises:
        ScheduleError: It sends where the graph has no way, or has other ranks, or a
            number is out of range.

    Example:
        >>> from drivetrain_comm.compiler import Transfer, schedule_of, star
        >>> schedule = schedule_of("", "broadcast", 3, [0, 0],
        ...     [Transfer(0, 1, 0), Transfer(1, 2, 0), Transfer(0, 1, 1),
        ...      Transfer(1, 2, 1)])
        >>> simulate(schedule, star([1e9] * 3), 2e9)
        3.0
    """
    if schedule.num_ranks != graph.num_ranks:
        message = (
            f"{schedule.name} is for {schedule.num_ranks} ranks, and {graph.name} has "
            f"{graph.num_ranks}"
        )
        raise ScheduleError(message)
    if not (0 <= size_bytes < math.inf and 0 <= message_s < math.inf):
        message = (
            "size_bytes and message_s must be finite and 0 or more, got "
            f"{size_bytes} and {message_s}"
        )
        raise ScheduleError(message)
    transfers = transfers_of(schedule)
    chunk_bytes = size_bytes / schedule.num_chunks
    return _Run(transfers, graph, chunk_bytes, message_s).to_end()


def in_good_order(
    transfers: Sequence[Transfer],
    graph: LinkGraph,
    chunk_bytes: float,
    *,
    message_s: float = 0.0,
    spread: float = 0.1,
) -> list[Transfer]:
    """Returns transfers in the order in which they would begin on a graph.

    Of what a rank may send to a peer, that goes first on which the longest chain of
    further transfers depends. But where all chunks went through their first steps
    before any goes on, the wires of the last steps would wait; so chunks also have an
    order among themselves, shuffled, since neighbours take the same wires.

    Args:
        transfers: In an order in which one could follow the other.
        graph: What they run on.
        chunk_bytes: How long a chunk is.
        message_s: How long a message takes beside its bytes.
        spread: How much further down the chain a transfer may be for each chunk that
            comes later in that order.
    """
    run = _Run(transfers, graph, chunk_bytes, message_s, spread=spread)
    run.to_end()
    return [transfers[i] for i in run.began]


@dataclass
class _Lane:
    """The messages of one rank to another.

    Args:
        wires: What they pass, by number.
        delay_s: Of the way.
        message_bytes: How long each one is, with what it takes beside its bytes.
        waiting: Those that may go, the first to go at the top.
        queue: All of them in their order, of which the first `at` have gone.
        current: That which goes now.
        left_bytes: Of that.
    """

    wires: tuple[int, ...]
    delay_s: float
    message_bytes: float
    waiting: list[tuple[float, int]] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    at: int = 0
    current: int | None = None
    left_bytes: float = 0.0


class _Run:
    """One run; `began` is the order in which transfers began."""

    def __init__(
        self,
        transfers: Sequence[Transfer],
        graph: LinkGraph,
        chunk_bytes: float,
        message_s: float,
        *,
        spread: float | None = None,
    ) -> None:
        """Begins a run in the given order, or with a `spread` in a better one."""
        self.began: list[int] = []
        self._transfers = transfers
        self._in_order = spread is None
        self._speeds = [wire.bytes_per_s for wire in graph.wires]
        numbers = {id(wire): i for i, wire in enumerate(graph.wires)}
        self._lanes: dict[tuple[int, int], _Lane] = {}
        self._rates_of: dict[tuple[tuple[int, int], ...], list[float]] = {}
        for i, (source, target, _, _) in enumerate(transfers):
            if (source, target) not in self._lanes:
                way = graph.route(source, target)
                if not way:
                    message = f"{graph.name} has no way from {source} to {target}"
                    raise ScheduleError(message)
                wires = tuple(numbers[id(wire)] for wire in way)
                delay_s = added(wire.delay_s for wire in way)
                slowest = min(wire.bytes_per_s for wire in way)
                message_bytes = chunk_bytes + message_s * slowest
                self._lanes[source, target] = _Lane(wires, delay_s, message_bytes)
            self._lanes[source, target].queue.append(i)
        self._follows, self._num_needs = _dependences(transfers)
        self._urgency = _urgency(transfers, self._follows, spread or 0.0)
        self._ready = [not num for num in self._num_needs]
        self._arrivals: list[tuple[float, int]] = []
        self._num_left = len(transfers)

    def to_end(self) -> float:
        now = 0.0
        for i, is_ready in enumerate(self._ready):
            if is_ready:
                self._offer(i)
        busy: dict[tuple[int, int], _Lane] = {}
        while self._num_left:
            self._begin(busy)
            rates = self._rates(busy)
            times = [
                lane.left_bytes / rate
                for lane, rate in zip(busy.values(), rates, strict=True)
            ]
            step = min(times, default=float("inf"))
            if self._arrivals:
                step = min(step, self._arrivals[0][0] - now)
            now += max(step, 0.0)
            for (key, lane), rate in zip(list(busy.items()), rates, strict=True):
                lane.left_bytes -= rate * step
                if lane.left_bytes <= _LEAST * lane.message_bytes:
                    assert lane.current is not None
                    heapq.heappush(self._arrivals, (now + lane.delay_s, lane.current))
                    lane.current = None
                    del busy[key]
            soon = now * (1 + 1e-12)
            while self._arrivals and self._arrivals[0][0] <= soon:
                self._arrive(heapq.heappop(self._arrivals)[1])
        return now

    def _rates(self, busy: dict[tuple[int, int], _Lane]) -> list[float]:
        key = tuple(busy)
        found = self._rates_of.get(key)
        if found is None:
            ways = [lane.wires for lane in busy.values()]
            found = self._rates_of[key] = fair_rates(ways, self._speeds)
        return found

    def _begin(self, busy: dict[tuple[int, int], _Lane]) -> None:
        for key, lane in self._lanes.items():
            if lane.current is not None:
                continue
            lane.current = self._next_of(lane)
            if lane.current is not None:
                self.began.append(lane.current)
                lane.left_bytes = lane.message_bytes
                busy[key] = lane

    def _next_of(self, lane: _Lane) -> int | None:
        if self._in_order:
            if lane.at < len(lane.queue) and self._ready[lane.queue[lane.at]]:
                lane.at += 1
                return lane.queue[lane.at - 1]
            return None
        return heapq.heappop(lane.waiting)[1] if lane.waiting else None

    def _offer(self, i: int) -> None:
        self._ready[i] = True
        if not self._in_order:
            source, target, _, _ = self._transfers[i]
            lane = self._lanes[source, target]
            heapq.heappush(lane.waiting, (-self._urgency[i], i))

    def _arrive(self, i: int) -> None:
        self._num_left -= 1
        for after in self._follows[i]:
            self._num_needs[after] -= 1
            if not self._num_needs[after]:
                self._offer(after)


def _dependences(transfers: Sequence[Transfer]) -> tuple[list[list[int]], list[int]]:
    """Returns which transfers follow each, and how many each one waits for.

    What reads a chunk waits for the last write to it; what writes it, for that and for
    all that has read it since.
    """
    follows: list[list[int]] = [[] for _ in transfers]
    num_needs = [0] * len(transfers)
    written: dict[tuple[int, int], int] = {}
    read: dict[tuple[int, int], list[int]] = {}
    for i, (source, target, chunk, _) in enumerate(transfers):
        needs = set(read.pop((target, chunk), []))
        needs |= {
            written[key] for key in ((source, chunk), (target, chunk)) if key in written
        }
        for need in needs:
            follows[need].append(i)
        num_needs[i] = len(needs)
        read.setdefault((source, chunk), []).append(i)
        written[target, chunk] = i
    return follows, num_needs


def _urgency(
    transfers: Sequence[Transfer], follows: Sequence[Sequence[int]], spread: float
) -> list[float]:
    heights = [0] * len(follows)
    for i in reversed(range(len(follows))):
        heights[i] = 1 + max((heights[after] for after in follows[i]), default=0)
    chunks = sorted({transfer.chunk for transfer in transfers})
    places = list(range(len(chunks)))
    random.Random(0).shuffle(places)
    place = dict(zip(chunks, places, strict=True))
    return [
        height - spread * place[transfer.chunk]
        for height, transfer in zip(heights, transfers, strict=True)
    ]
