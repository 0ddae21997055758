"""Time turned around: what gathers in one direction reduces in the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from drivetrain_comm.compiler._schedule import Transfer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_comm.compiler._graph import LinkGraph


def reversed_graph(graph: LinkGraph) -> LinkGraph:
    """Returns the graph with every wire the other way."""
    wires = [replace(w, source=w.target, target=w.source) for w in graph.wires]
    return replace(graph, wires=tuple(wires))


def reversed_transfers(transfers: Sequence[Transfer]) -> list[Transfer]:
    """Returns the reduce-scatter that an all-gather on the reversed graph is.

    Example:
        >>> reversed_transfers([Transfer(0, 1, 0), Transfer(1, 2, 0)])
        ... # doctest: +NORMALIZE_WHITESPACE
        [Transfer(source=2, target=1, chunk=0, reduces=True),
         Transfer(source=1, target=0, chunk=0, reduces=True)]
    """
    return [
        Transfer(target, source, chunk, reduces=True)
        for source, target, chunk, _ in reversed(transfers)
    ]
