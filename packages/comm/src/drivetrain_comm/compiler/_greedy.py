"""All-gather by greedy search in time: whoever is free takes what is rarest.

As time passes, each free way between two ranks is given a chunk that its source has and
its target lacks (Won et al., "TACOS: Topology-aware collective algorithm synthesizer",
MICRO 2024). A way is free when no other transfer is on any of its wires.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from drivetrain_comm.compiler._graph import added
from drivetrain_comm.compiler._schedule import Transfer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_comm.compiler._graph import LinkGraph


def greedy_gather(
    graph: LinkGraph, owners: Sequence[int], chunk_bytes: float
) -> list[Transfer]:
    """Returns the transfers that bring each chunk from its owner to all ranks.

    Args:
        graph: The links.
        owners: The rank that has each chunk at first.
        chunk_bytes: How long a chunk is.

    Example:
        >>> from drivetrain_comm.compiler import star
        >>> greedy_gather(star([1e9] * 2), [0, 1], 1e6)
        ... # doctest: +NORMALIZE_WHITESPACE
        [Transfer(source=0, target=1, chunk=0, reduces=False),
         Transfer(source=1, target=0, chunk=1, reduces=False)]
    """
    search = _Search(graph, owners, chunk_bytes)
    search.run()
    return search.found


class _Search:
    def __init__(
        self, graph: LinkGraph, owners: Sequence[int], chunk_bytes: float
    ) -> None:
        self.found: list[Transfer] = []
        numbers = {id(wire): i for i, wire in enumerate(graph.wires)}
        self._has = [{c for c, o in enumerate(owners) if o == r} for r in graph.ranks]
        # What a rank lacks and nobody is sending to it.
        self._lacks = [set(range(len(owners))) - has for has in self._has]
        self._num_holders = [1] * len(owners)
        self._busy = [False] * len(graph.wires)
        self._ways: dict[tuple[int, int], tuple[list[int], float, float]] = {}
        for pair in graph.pairs:
            way = graph.route(*pair)
            width = min(wire.bytes_per_s for wire in way)
            delay_s = added(wire.delay_s for wire in way)
            wires = [numbers[id(wire)] for wire in way]
            self._ways[pair] = wires, chunk_bytes / width, delay_s
        # The fastest ways choose first, and of equal ones each source in its turn.
        self._pairs = sorted(
            self._ways,
            key=lambda p: (self._ways[p][1], (p[1] - p[0]) % graph.num_ranks, p[0]),
        )

    def run(self) -> None:
        # When wires are free again, and when chunks have come.
        events: list[tuple[float, int, tuple[int, int], int]] = []
        now = 0.0
        while True:
            for pair in self._pairs:
                chunk = self._choose(pair)
                if chunk is None:
                    continue
                wires, busy_s, delay_s = self._ways[pair]
                for wire in wires:
                    self._busy[wire] = True
                self._lacks[pair[1]].discard(chunk)
                self._num_holders[chunk] += 1
                self.found.append(Transfer(*pair, chunk))
                heapq.heappush(events, (now + busy_s, 0, pair, chunk))
                heapq.heappush(events, (now + busy_s + delay_s, 1, pair, chunk))
            if not events:
                return
            now = events[0][0]
            while events and events[0][0] <= now * (1 + 1e-12):
                _, kind, pair, chunk = heapq.heappop(events)
                if kind:
                    self._has[pair[1]].add(chunk)
                    continue
                for wire in self._ways[pair][0]:
                    self._busy[wire] = False

    def _choose(self, pair: tuple[int, int]) -> int | None:
        if any(self._busy[wire] for wire in self._ways[pair][0]):
            return None
        wanted = self._has[pair[0]] & self._lacks[pair[1]]
        return min(wanted, key=lambda c: (self._num_holders[c], c), default=None)
