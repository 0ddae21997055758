"""`compile_schedule`: the fastest schedule that can be found for a graph."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_comm.compiler._bound import Bound, lower_bound
from drivetrain_comm.compiler._errors import ScheduleError
from drivetrain_comm.compiler._graph import LinkGraph
from drivetrain_comm.compiler._greedy import greedy_gather
from drivetrain_comm.compiler._library import library
from drivetrain_comm.compiler._reverse import reversed_graph, reversed_transfers
from drivetrain_comm.compiler._schedule import COLLECTIVES, Transfer, schedule_of
from drivetrain_comm.compiler._simulate import in_good_order, simulate
from drivetrain_comm.compiler._trees import packed_trees
from drivetrain_comm.compiler._verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_comm.compiler._schedule import Schedule

_PIECES = (1, 2, 4, 8, 16, 32, 64, 96)  # a rank's part is cut into
_LEAST_CHUNK_BYTES = 256
_SPREADS = (0.1, 1.0)
_MOST_GREEDY = 256  # chunks; its search takes the square of them
_NEAR = 1.01  # times the bound: nothing is left to gain


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A schedule that was tried.

    Args:
        name: How it was made.
        num_chunks: Into how many chunks it cuts the vector.
        seconds: What it takes on the graph.
    """

    name: str
    num_chunks: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """The fastest schedule that was found, which is proven to be right.

    Args:
        schedule: The schedule.
        seconds: What it takes on the graph.
        bound: What none can beat.
        candidates: All that were tried, the fastest first.
    """

    schedule: Schedule
    seconds: float
    bound: Bound
    candidates: tuple[Candidate, ...]

    @property
    def ratio(self) -> float:
        """Its time over the bound's."""
        return self.seconds / self.bound.seconds

    def best_of_each(self) -> list[Candidate]:
        """Returns the fastest candidate of each name, the fastest first."""
        best: dict[str, Candidate] = {}
        for one in self.candidates:
            best.setdefault(one.name, one)
        return list(best.values())

    def __str__(self) -> str:
        """Returns the best of each way as a table, with the bound below."""
        rows = [
            f"{one.name:24} {one.num_chunks:6} chunks  {one.seconds * 1e6:12.1f} us  "
            f"{one.seconds / self.bound.seconds:.3f} x the bound"
            for one in self.best_of_each()
        ]
        bound = f"{self.bound.seconds * 1e6:.1f} us: {self.bound.because}"
        return "\n".join([*rows, f"none can be faster than {bound}"])


def compile_schedule(
    graph: LinkGraph,
    collective: str,
    size_bytes: int,
    *,
    root: int = 0,
    message_s: float = 0.0,
    most_pieces: int = 96,
    budget_s: float = 30.0,
) -> Compiled:
    """Returns the fastest schedule of the library, of greedy search and of trees.

    Each is tried on the graph in simulation, trees in finer and finer chunks, until
    one is within 1 % of the bound or the budget is used up. The same arguments and
    enough time give the same schedule.

    Args:
        graph: The links.
        collective: "all_reduce", "all_gather", "reduce_scatter" or "broadcast".
        size_bytes: Of the vector: what an all-gather gives, or a reduce-scatter takes.
        root: Of a broadcast.
        message_s: How long a message takes beside its bytes, on whatever will run it.
        most_pieces: Into how many pieces a rank's part of the vector is cut at most. More
            come nearer to the bound, and take longer to find.
        budget_s: After how many seconds no further candidate is begun; one that has
            begun is not interrupted.

    Raises:
        ScheduleError: An argument is out of range.

    Example:
        >>> from drivetrain_comm.compiler import star
        >>> found = compile_schedule(star([1e9, 1e9, 2.5e8]), "all_reduce", 10**8)
        >>> found.candidates[0].seconds < 0.42, found.bound.seconds
        (True, 0.4)
    """
    _check(graph, collective, size_bytes, root, message_s)
    bound = lower_bound(graph, collective, size_bytes, root)
    best: Schedule | None = None
    least = math.inf
    tried: list[Candidate] = []
    deadline = time.monotonic() + budget_s
    for schedule in _candidates(
        graph, collective, size_bytes, root, message_s, most_pieces
    ):
        seconds = simulate(schedule, graph, size_bytes, message_s=message_s)
        tried.append(
            Candidate(
                name=schedule.name, num_chunks=schedule.num_chunks, seconds=seconds
            )
        )
        if seconds < least:
            best, least = schedule, seconds
        if time.monotonic() > deadline or least <= _NEAR * bound.seconds:
            break
    assert best is not None  # trees take every graph
    verify(best)
    tried.sort(key=lambda one: one.seconds)
    return Compiled(schedule=best, seconds=least, bound=bound, candidates=tuple(tried))


def _check(
    graph: LinkGraph, collective: str, size_bytes: int, root: int, message_s: float
) -> None:
    if collective not in COLLECTIVES:
        message = f"no collective {collective!r}: there are {', '.join(COLLECTIVES)}"
        raise ScheduleError(message)
    if not 1 <= size_bytes < math.inf:
        message = f"size_bytes must be 1 or more, got {size_bytes}"
        raise ScheduleError(message)
    if not 0 <= message_s < math.inf:
        message = f"message_s must be 0 or more, got {message_s}"
        raise ScheduleError(message)
    if root not in graph.ranks:
        message = f"root must be one of {graph.num_ranks} ranks, got {root}"
        raise ScheduleError(message)


def _candidates(
    graph: LinkGraph,
    collective: str,
    size_bytes: int,
    root: int,
    message_s: float,
    most_pieces: int,
) -> Iterator[Schedule]:
    """Yields schedules, those first that are made in no time."""
    graphs = list(dict.fromkeys([graph, graph.quickest()]))
    for one in graphs:
        yield from library(one, collective, root)
    for pieces in _PIECES:
        num_chunks = pieces * graph.num_ranks
        chunk_bytes = size_bytes / num_chunks
        if pieces > 1 and (chunk_bytes < _LEAST_CHUNK_BYTES or pieces > most_pieces):
            return
        for one in graphs:
            maker = _Maker(one, collective, num_chunks, root, chunk_bytes, message_s)
            if num_chunks <= _MOST_GREEDY:
                yield maker.greedy()
            yield from maker.trees()


_Gather = Callable[[LinkGraph, list[int]], list[Transfer]]


@dataclass(frozen=True)
class _Maker:
    """Makes schedules of one number of chunks."""

    graph: LinkGraph
    collective: str
    num_chunks: int
    root: int
    chunk_bytes: float
    message_s: float

    def greedy(self) -> Schedule:
        """Returns what greedy search finds; a reduction is a gathering turned around."""
        each = self.num_chunks // self.graph.num_ranks
        owners = [chunk // each for chunk in range(self.num_chunks)]
        if self.collective == "broadcast":
            owners = [self.root] * self.num_chunks
        return self._two_halves("greedy", owners, self._gathered_greedily)

    def trees(self) -> Iterator[Schedule]:
        """Yields what packed trees give."""
        if self.collective in ("all_reduce", "reduce_scatter"):
            each = self.num_chunks // self.graph.num_ranks
            owners = [chunk // each for chunk in range(self.num_chunks)]
            yield self._two_halves("trees in halves", owners, self._gathered_by_trees)
        if self.collective == "reduce_scatter":
            return
        owners, transfers = packed_trees(
            self.graph, self.collective, self.num_chunks, self.root
        )
        for spread in _SPREADS:
            ordered = in_good_order(
                transfers,
                self.graph,
                self.chunk_bytes,
                message_s=self.message_s,
                spread=spread,
            )
            yield self._schedule("trees", owners, ordered)

    def _two_halves(self, name: str, owners: list[int], gathered: _Gather) -> Schedule:
        transfers: list[Transfer] = []
        if self.collective in ("all_reduce", "reduce_scatter"):
            back = gathered(reversed_graph(self.graph), owners)
            transfers += reversed_transfers(back)
        if self.collective != "reduce_scatter":
            transfers += gathered(self.graph, owners)
        return self._schedule(name, owners, transfers)

    def _gathered_greedily(self, graph: LinkGraph, owners: list[int]) -> list[Transfer]:
        return greedy_gather(graph, owners, self.chunk_bytes)

    def _gathered_by_trees(self, graph: LinkGraph, _: list[int]) -> list[Transfer]:
        _, transfers = packed_trees(graph, "all_gather", self.num_chunks)
        return in_good_order(
            transfers, graph, self.chunk_bytes, message_s=self.message_s
        )

    def _schedule(
        self, name: str, owners: list[int], transfers: list[Transfer]
    ) -> Schedule:
        return schedule_of(
            name, self.collective, self.graph.num_ranks, owners, transfers
        )
