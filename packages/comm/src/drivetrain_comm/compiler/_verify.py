"""Proves that a schedule does what its collective promises, whatever the timing."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from drivetrain_comm.algorithms._steps import Kind
from drivetrain_comm.compiler._errors import ScheduleError
from drivetrain_comm.compiler._schedule import Transfer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_comm.compiler._schedule import Schedule

_Node = tuple[int, int]
"""A rank and the index of a step in its program."""


def verify(schedule: Schedule) -> None:
    """Raises unless `find_fault` finds nothing.

    Raises:
        ScheduleError: The schedule is wrong; the message says where.
    """
    fault = find_fault(schedule)
    if fault is not None:
        message = f"{schedule.name} is no {schedule.collective}: {fault}"
        raise ScheduleError(message)


def find_fault(schedule: Schedule) -> str | None:
    """Returns what is wrong with a schedule, or None.

    Steps of a rank on one chunk happen in the order of its program, and so do those to
    one peer, and those from it; all others at any time. Messages are taken only when
    both sides are ready, which is the strictest way. So the steps are a graph, and:

    - each message has two sides, which name the same chunk;
    - the graph has no cycle, so that nothing waits for ever, and what each step reads
      and writes does not depend on timing;
    - followed on symbols, each contribution is added exactly once, is never overwritten
      before it was passed on, and the results are where they should be, bit by bit the
      same.

    Args:
        schedule: What is to be proven.

    Example:
        >>> from drivetrain_comm.compiler import Transfer, schedule_of
        >>> find_fault(schedule_of("", "broadcast", 3, [0], [Transfer(0, 1, 0)]))
        'rank 2 has no part of chunk 0 at the end'
    """
    partner: dict[_Node, _Node] = {}
    order = _ordered(schedule, partner)
    return order if isinstance(order, str) else _followed(schedule, partner, order)


def transfers_of(schedule: Schedule) -> list[Transfer]:
    """Returns the transfers of a schedule, each after all that it depends on.

    Raises:
        ScheduleError: Ranks contradict each other, or wait for each other for ever.
    """
    partner: dict[_Node, _Node] = {}
    order = _ordered(schedule, partner)
    if isinstance(order, str):
        message = f"{schedule.name} is no {schedule.collective}: {order}"
        raise ScheduleError(message)
    found = []
    for rank, at in order:
        kind, peer, chunk = schedule.programs[rank][at]
        if kind == Kind.SEND:
            there = partner[rank, at]
            adds = schedule.programs[there[0]][there[1]].kind == Kind.REDUCE
            found.append(Transfer(rank, peer, chunk, adds))
    return found


def _match(schedule: Schedule, partner: dict[_Node, _Node]) -> str | None:
    """Finds the other side of each message."""
    sides: dict[tuple[int, int, bool], list[_Node]] = {}
    for rank, program in enumerate(schedule.programs):
        for at, (kind, peer, _) in enumerate(program):
            if kind == Kind.SEND:
                sides.setdefault((rank, peer, True), []).append((rank, at))
            elif kind != Kind.FINISH:
                sides.setdefault((peer, rank, False), []).append((rank, at))
    for source, target in {key[:2] for key in sides}:
        sends = sides.get((source, target, True), [])
        takes = sides.get((source, target, False), [])
        for one, other in zip(sends, takes, strict=False):
            chunks = [schedule.programs[r][at].chunk for r, at in (one, other)]
            if chunks[0] != chunks[1]:
                return (
                    f"rank {source} sends chunk {chunks[0]} to rank {target}, which "
                    f"expects chunk {chunks[1]}"
                )
            partner[one], partner[other] = other, one
        if len(sends) > len(takes):
            rank, at = sends[len(takes)]
            chunk = schedule.programs[rank][at].chunk
            return f"rank {target} never takes chunk {chunk} of rank {source}"
        if len(takes) > len(sends):
            rank, at = takes[len(sends)]
            chunk = schedule.programs[rank][at].chunk
            return f"rank {target} waits for chunk {chunk} of rank {source}"
    return None


def _ordered(schedule: Schedule, partner: dict[_Node, _Node]) -> list[_Node] | str:
    """Returns the steps in an order that all dependences allow; a message once.

    Args:
        schedule: Whose steps.
        partner: Is given the other side of each message.

    Returns:
        The order, or what makes it impossible.
    """
    fault = _match(schedule, partner)
    if fault is not None:
        return fault
    # The two sides of a message are one node, that of the sender.
    follows: dict[_Node, list[_Node]] = {}
    num_needs: dict[_Node, int] = {}
    for rank, program in enumerate(schedule.programs):
        last: dict[tuple[str, int], _Node] = {}
        for at, (kind, peer, chunk) in enumerate(program):
            node = _sender((rank, at), kind, partner)
            num_needs.setdefault(node, 0)
            keys = [("chunk", chunk)]
            if kind != Kind.FINISH:
                keys.append(("to" if kind == Kind.SEND else "from", peer))
            for key in keys:
                if key in last:
                    follows.setdefault(last[key], []).append(node)
                    num_needs[node] += 1
                last[key] = node
    ready = deque(sorted(node for node, num in num_needs.items() if not num))
    order = []
    while ready:
        node = ready.popleft()
        order.append(node)
        for after in follows.get(node, ()):
            num_needs[after] -= 1
            if not num_needs[after]:
                ready.append(after)
    if len(order) < len(num_needs):
        rank, at = min(set(num_needs) - set(order))
        step = schedule.programs[rank][at]
        return (
            f"ranks wait for each other: rank {rank} cannot "
            f"{step.kind.name.lower()} chunk {step.chunk}"
        )
    return order


def _sender(node: _Node, kind: Kind, partner: dict[_Node, _Node]) -> _Node:
    return partner[node] if kind in (Kind.RECEIVE, Kind.REDUCE) else node


class _Held:
    """What one rank has of one chunk.

    Attributes:
        mask: The ranks whose contributions are in it, one bit each.
        version: Who made this sum, and by which step; copies have that of the original.
        is_finished: Whether it was finished.
    """

    __slots__ = ("is_finished", "mask", "version")

    def __init__(self, mask: int, version: tuple[int, int]) -> None:
        self.mask = mask
        self.version = version
        self.is_finished = False


def _followed(
    schedule: Schedule, partner: dict[_Node, _Node], order: list[_Node]
) -> str | None:
    """Carries the steps out on sets of contributions."""
    reduces = schedule.collective in ("all_reduce", "reduce_scatter")
    held = [
        [
            _Held((1 << rank) if reduces or owner == rank else 0, (rank, -1))
            for owner in schedule.owners
        ]
        for rank in range(schedule.num_ranks)
    ]
    for rank, at in order:
        kind, peer, chunk = schedule.programs[rank][at]
        mine = held[rank][chunk]
        if kind == Kind.FINISH:
            fault = _finish(schedule, rank, chunk, mine)
        else:
            there = partner[rank, at]
            adds = schedule.programs[there[0]][there[1]].kind == Kind.REDUCE
            if adds and not reduces:
                return f"rank {peer} adds to chunk {chunk}, and nothing is reduced"
            fault = _deliver(rank, there, chunk, mine, held[peer][chunk], adds=adds)
        if fault is not None:
            return fault
    return next(_faults_at_end(schedule, held), None)


def _finish(schedule: Schedule, rank: int, chunk: int, mine: _Held) -> str | None:
    if schedule.collective not in ("all_reduce", "reduce_scatter"):
        return f"rank {rank} finishes chunk {chunk}, and nothing is reduced"
    if rank != schedule.owners[chunk]:
        owner = schedule.owners[chunk]
        return f"rank {rank} finishes chunk {chunk}, which rank {owner} owns"
    if mine.is_finished:
        return f"rank {rank} finishes chunk {chunk} twice"
    missing = _first_missing(mine.mask, schedule.num_ranks)
    if missing is not None:
        return f"rank {rank} finishes chunk {chunk} without rank {missing}"
    mine.is_finished = True
    return None


def _deliver(
    source: int, there: _Node, chunk: int, sent: _Held, kept: _Held, *, adds: bool
) -> str | None:
    target, at = there
    if not sent.mask:
        return f"rank {source} sends chunk {chunk} to rank {target} before it has any"
    if adds:
        if sent.is_finished or kept.is_finished:
            return f"rank {target} adds to chunk {chunk} after it was finished"
        twice = sent.mask & kept.mask
        if twice:
            rank = twice.bit_length() - 1
            return f"chunk {chunk} of rank {target} holds rank {rank} twice"
        kept.mask |= sent.mask
        kept.version = target, at
        return None
    lost = kept.mask & ~sent.mask
    if lost:
        rank = lost.bit_length() - 1
        return f"rank {target} loses rank {rank} of chunk {chunk}"
    if kept.version == sent.version and kept.is_finished == sent.is_finished:
        return f"rank {target} receives chunk {chunk} twice"
    kept.mask, kept.version = sent.mask, sent.version
    kept.is_finished = sent.is_finished
    return None


def _faults_at_end(schedule: Schedule, held: list[list[_Held]]) -> Iterator[str]:
    for chunk, owner in enumerate(schedule.owners):
        reduces = schedule.collective in ("all_reduce", "reduce_scatter")
        wanted = (1 << schedule.num_ranks) - 1 if reduces else 1 << owner
        final = held[owner][chunk]
        if reduces and not final.is_finished:
            yield f"rank {owner} does not finish chunk {chunk}"
        only_owner = schedule.collective == "reduce_scatter"
        for rank in [owner] if only_owner else range(schedule.num_ranks):
            found = held[rank][chunk]
            missing = _first_missing(found.mask | ~wanted, schedule.num_ranks)
            if not found.mask:
                yield f"rank {rank} has no part of chunk {chunk} at the end"
            if missing is not None:
                yield f"chunk {chunk} of rank {rank} lacks rank {missing} at the end"
            if (found.version, found.is_finished) != (final.version, final.is_finished):
                yield f"chunk {chunk} of rank {rank} is not that of rank {owner}"


def _first_missing(mask: int, num_ranks: int) -> int | None:
    return next((r for r in range(num_ranks) if not mask >> r & 1), None)
