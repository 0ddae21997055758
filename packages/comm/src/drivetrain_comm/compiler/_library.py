"""The usual algorithms as schedules: what a compiled one has to beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_comm.algorithms import direct, ring
from drivetrain_comm.algorithms._blocks import finish
from drivetrain_comm.algorithms._steps import Kind
from drivetrain_comm.compiler._cycle import widest_cycle
from drivetrain_comm.compiler._graph import rank_of
from drivetrain_comm.compiler._reverse import reversed_transfers
from drivetrain_comm.compiler._schedule import Schedule, Transfer, schedule_of
from drivetrain_comm.selection._choice import STOCK, available, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drivetrain_comm.algorithms._steps import Step
    from drivetrain_comm.compiler._graph import LinkGraph

_PIECES = 16  # a tree's vector is cut into, so that its levels work at once


def library(graph: LinkGraph, collective: str, root: int = 0) -> list[Schedule]:
    """Returns the schedules of algorithms that have ways for all that they send.

    all_reduce: ring, two rings (one each way), direct, recursive halving and doubling,
    each also in two levels where ranks have switches of their own, a binary tree, and
    one of the quickest ways from the rank that is nearest to all.
    all_gather and reduce_scatter: ring, two rings, direct, Bruck's (Bruck et al.,
    "Efficient algorithms for all-to-all communications in multiport message-passing
    systems", 1997) and its reverse. broadcast: chain, binary tree, direct.

    Args:
        graph: What they run on. Rings go around in the order of the widest one.
        collective: Which one.
        root: Of a broadcast.

    Example:
        >>> from drivetrain_comm.compiler import star
        >>> [schedule.name for schedule in library(star([1e9] * 4), "all_reduce")]
        ['ring', 'direct', 'halving', 'two rings', 'tree', 'quickest tree']
    """
    order = widest_cycle(graph)
    if collective == "all_reduce":
        found = [*_all_reduces(graph, order)]
    elif collective == "broadcast":
        found = [*_broadcasts(graph, order, root)]
    else:
        found = [*_halves(graph.num_ranks, order, collective)]
    ways = set(graph.pairs)
    return [s for s in found if ways.issuperset(_pairs(s))]


def _pairs(schedule: Schedule) -> set[tuple[int, int]]:
    return {
        (rank, step.peer)
        for rank, program in enumerate(schedule.programs)
        for step in program
        if step.kind == Kind.SEND
    }


def _all_reduces(graph: LinkGraph, order: Sequence[int]) -> Iterator[Schedule]:
    flat = [[rank] for rank in order]
    groups = _groups(graph)
    for hosts in [flat] if groups is None else [flat, groups]:
        for name in available(hosts):
            is_flat = not name.startswith("hierarchical")
            if name == STOCK or is_flat is not (hosts is flat):
                continue
            programs = [steps_of(name, hosts, rank) for rank in graph.ranks]
            yield _whole(name, [p for p, _ in programs], programs[0][1])
    yield _two_rings(graph.num_ranks, order)
    pairs = [(order[i], order[(i - 1) // 2]) for i in range(1, graph.num_ranks)]
    yield _tree("tree", order[0], pairs)
    center = min(
        graph.ranks, key=lambda r: max(graph.delay_s(r, o) for o in graph.ranks)
    )
    yield _tree("quickest tree", center, _quickest(graph, center))


def _whole(name: str, programs: Sequence[list[Step]], num_chunks: int) -> Schedule:
    owners = [0] * num_chunks
    for rank, program in enumerate(programs):
        for kind, _, chunk in program:
            if kind == Kind.FINISH:
                owners[chunk] = rank
    return Schedule.of(name, "all_reduce", owners, programs)


def _two_rings(num_ranks: int, order: Sequence[int]) -> Schedule:
    """Half of the vector goes around one way, and half the other way."""
    half = num_ranks
    programs = []
    for rank in range(num_ranks):
        there = ring.all_reduce(order, rank, range(half))
        back = ring.all_reduce(order[::-1], rank, range(half, 2 * half))
        programs.append(_in_turns(there, back))
    return _whole("two rings", programs, 2 * half)


def _in_turns(one: Sequence[Step], other: Sequence[Step]) -> list[Step]:
    return [step for pair in zip(one, other, strict=True) for step in pair]


def _quickest(graph: LinkGraph, root: int) -> list[tuple[int, int]]:
    """Returns each rank with the one before it on its quickest way from a root."""
    delays = {rank: graph.delay_s(root, rank) for rank in graph.ranks}
    pairs = []
    for rank in sorted(delays, key=delays.__getitem__):
        if rank != root:
            nearer = [r for r in delays if r == root or delays[r] < delays[rank]]
            nearer = [r for r in nearer if (r, rank) in graph.pairs] or [root]
            before = min(nearer, key=lambda r: delays[r] + graph.delay_s(r, rank))
            pairs.append((rank, before))
    return pairs


def _tree(name: str, root: int, pairs: Sequence[tuple[int, int]]) -> Schedule:
    """Reduces along the pairs, the last first, to the root, and back."""
    transfers: list[Transfer] = []
    for chunk in range(_PIECES):
        transfers += [Transfer(a, b, chunk, reduces=True) for a, b in reversed(pairs)]
        transfers += [Transfer(b, a, chunk) for a, b in pairs]
    owners = [root] * _PIECES
    return schedule_of(name, "all_reduce", len(pairs) + 1, owners, transfers)


def _broadcasts(
    graph: LinkGraph, order: Sequence[int], root: int
) -> Iterator[Schedule]:
    at = order.index(root)
    line = [*order[at:], *order[:at]]
    parents: dict[str, Callable[[int], int]] = {
        "chain": lambda i: i - 1,
        "tree": lambda i: (i - 1) // 2,
        "direct": lambda _: 0,
    }
    for name, parent in parents.items():
        transfers = [
            Transfer(line[parent(i)], line[i], chunk)
            for chunk in range(_PIECES)
            for i in range(1, graph.num_ranks)
        ]
        owners = [root] * _PIECES
        yield schedule_of(name, "broadcast", graph.num_ranks, owners, transfers)


def _halves(
    num_ranks: int, order: Sequence[int], collective: str
) -> Iterator[Schedule]:
    for name, module in (("ring", ring), ("direct", direct)):
        blocks = [[order[i]] for i in range(num_ranks)]
        make = getattr(module, collective)
        owners = range(num_ranks)
        programs = [make(order, rank, blocks) for rank in owners]
        yield _finished(name, collective, owners, programs)
    yield _two_half_rings(num_ranks, order, collective)
    transfers = _bruck(num_ranks)
    if collective == "reduce_scatter":
        transfers = reversed_transfers(transfers)
    yield schedule_of("bruck", collective, num_ranks, range(num_ranks), transfers)


def _two_half_rings(num_ranks: int, order: Sequence[int], collective: str) -> Schedule:
    make = getattr(ring, collective)
    programs = []
    for rank in range(num_ranks):
        there = make(order, rank, [[2 * r] for r in order])
        back = make(order[::-1], rank, [[2 * r + 1] for r in order[::-1]])
        programs.append(_in_turns(there, back))
    owners = [chunk // 2 for chunk in range(2 * num_ranks)]
    return _finished("two rings", collective, owners, programs)


def _finished(
    name: str, collective: str, owners: Sequence[int], programs: Sequence[list[Step]]
) -> Schedule:
    if collective == "reduce_scatter":
        programs = [
            [*program, *finish([c for c, o in enumerate(owners) if o == rank])]
            for rank, program in enumerate(programs)
        ]
    return Schedule.of(name, collective, owners, programs)


def _bruck(num_ranks: int) -> list[Transfer]:
    found = []
    reach = 1
    while reach < num_ranks:
        for rank in range(num_ranks):
            to = (rank - reach) % num_ranks
            found += [
                Transfer(rank, to, (rank + offset) % num_ranks)
                for offset in range(min(reach, num_ranks - reach))
            ]
        reach *= 2
    return found


def _groups(graph: LinkGraph) -> list[list[int]] | None:
    """Returns the ranks below each switch, if those are several groups of several."""
    below: dict[str, list[int]] = {}
    for wire in graph.wires:
        rank = rank_of(wire.source)
        if rank is not None:
            is_switch = rank_of(wire.target) is None
            below.setdefault(wire.target if is_switch else "", []).append(rank)
    groups = sorted(sorted(ranks) for ranks in below.values())
    whole = sorted(rank for group in groups for rank in group)
    if "" in below or whole != list(graph.ranks) or len(groups) in (1, len(whole)):
        return None
    return groups
