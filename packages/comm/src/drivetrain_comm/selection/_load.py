"""Load of an algorithm on a network: bytes over links and flows, and hops."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_comm.algorithms._steps import Kind, Step

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What an all-reduce of one vector asks of a network.

    Args:
        link: What the busiest host sends or receives, in vectors.
        flow: What the busiest connection between hosts carries one way, in vectors.
        hops: Messages between hosts that wait for each other.
        local: What the busiest host moves within itself, in vectors.
        messages: What the busiest rank sends and receives.
    """

    link: float
    flow: float
    hops: int
    local: float
    messages: int


def load_of(
    programs: Sequence[Sequence[Step]], num_chunks: int, hosts: Sequence[Sequence[int]]
) -> Load:
    """Counts what the steps of all ranks ask of the network between hosts.

    Args:
        programs: The steps of each rank.
        num_chunks: Into how many chunks the vector is cut.
        hosts: The ranks of each host.

    Example:
        >>> from drivetrain_comm.algorithms import ring
        >>> whole = [ring.all_reduce(range(4), rank, range(4)) for rank in range(4)]
        >>> load = load_of(whole, 4, [[0, 1], [2, 3]])
        >>> load.link, load.hops
        (1.5, 3)
    """
    host_of = {rank: at for at, ranks in enumerate(hosts) for rank in ranks}
    sent, flows, local, messages = (Counter[object]() for _ in range(4))
    for rank, program in enumerate(programs):
        for kind, peer, _ in program:
            if kind != Kind.FINISH:
                messages[rank] += 1
            if kind != Kind.SEND:
                continue
            here, there = host_of[rank], host_of[peer]
            if here == there:
                local[here] += 1
            else:
                sent["out", here] += 1
                sent["in", there] += 1
                flows[rank, peer] += 1
    return Load(
        link=_most(sent) / num_chunks,
        flow=_most(flows) / num_chunks,
        hops=_hops(programs, num_chunks, host_of),
        local=_most(local) / num_chunks,
        messages=_most(messages),
    )


def _most(counts: Counter[object]) -> int:
    return max(counts.values(), default=0)


def _hops(
    programs: Sequence[Sequence[Step]], num_chunks: int, host_of: dict[int, int]
) -> int:
    """Returns the longest chain of messages between hosts."""
    depth = [[0] * num_chunks for _ in programs]
    wires: dict[tuple[int, int], deque[int]] = {}
    at = [0] * len(programs)
    has_moved = True
    while has_moved:
        has_moved = False
        for rank, program in enumerate(programs):
            while at[rank] < len(program):
                kind, peer, chunk = program[at[rank]]
                if kind == Kind.SEND:
                    far = host_of[rank] != host_of[peer]
                    wire = wires.setdefault((rank, peer), deque())
                    wire.append(depth[rank][chunk] + far)
                elif kind != Kind.FINISH:
                    wire = wires.get((peer, rank), deque())
                    if not wire:
                        break
                    here = depth[rank][chunk] if kind == Kind.REDUCE else 0
                    depth[rank][chunk] = max(here, wire.popleft())
                at[rank] += 1
                has_moved = True
    return max((d for chunks in depth for d in chunks), default=0)
