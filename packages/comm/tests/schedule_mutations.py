"""For tests: schedules with one mistake, and runs of a schedule in random order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from drivetrain_comm.algorithms._steps import Kind, Step
from drivetrain_comm.compiler._errors import ScheduleError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from drivetrain_comm.compiler._schedule import Schedule

__all__ = ["MUTATIONS", "follow_at_random", "mutated"]

_Programs = list[list[Step]]

# Steps on one chunk of which neither may come before the other.
_ORDERED = {
    (Kind.REDUCE, Kind.SEND),
    (Kind.RECEIVE, Kind.SEND),
    (Kind.SEND, Kind.RECEIVE),
    (Kind.REDUCE, Kind.FINISH),
    (Kind.FINISH, Kind.SEND),
}


def mutated(schedule: Schedule, mutation: str, rng: random.Random) -> Schedule | None:
    """Returns a right schedule with one mistake, which makes it wrong.

    Args:
        schedule: It must be right.
        mutation: One of `MUTATIONS`. Those that begin with "message" change both sides,
            so that ranks still agree on what is sent.
        rng: Chooses where.

    Returns:
        The schedule; None if there is no place for that mistake.

    Example:
        >>> import random
        >>> from drivetrain_comm.compiler import Transfer, find_fault, schedule_of
        >>> pair = schedule_of("", "broadcast", 2, [0], [Transfer(0, 1, 0)])
        >>> find_fault(mutated(pair, "message dropped", random.Random(0)))
        'rank 1 has no part of chunk 0 at the end'
    """
    programs = [list(program) for program in schedule.programs]
    if not MUTATIONS[mutation](programs, schedule.num_chunks, rng):
        return None
    return replace(
        schedule,
        name=f"{schedule.name}, {mutation}",
        programs=tuple(tuple(program) for program in programs),
    )


def _place(programs: _Programs, rng: random.Random) -> tuple[int, int]:
    places = [(r, i) for r, p in enumerate(programs) for i in range(len(p))]
    return rng.choice(places)


def _drop(programs: _Programs, _: int, rng: random.Random) -> bool:
    rank, at = _place(programs, rng)
    del programs[rank][at]
    return True


def _duplicate(programs: _Programs, _: int, rng: random.Random) -> bool:
    rank, at = _place(programs, rng)
    programs[rank].insert(at, programs[rank][at])
    return True


def _reorder(programs: _Programs, _: int, rng: random.Random) -> bool:
    """Swaps two steps with one peer, or two on one chunk that have an order."""
    pairs = []
    for rank, program in enumerate(programs):
        last: dict[tuple[str, int, bool], int] = {}
        for at, step in enumerate(program):
            sends = step.kind == Kind.SEND
            keys = [("chunk", step.chunk, False)]
            if step.kind != Kind.FINISH:
                keys.append(("peer", step.peer, sends))
            for key in keys:
                before = last.get(key)
                last[key] = at
                if before is None:
                    continue
                other = program[before]
                if key[0] == "peer" and other.chunk != step.chunk:
                    pairs.append((rank, before, at))
                if key[0] == "chunk" and (other.kind, step.kind) in _ORDERED:
                    pairs.append((rank, before, at))
    if not pairs:
        return False
    rank, one, other_at = rng.choice(pairs)
    program = programs[rank]
    program[one], program[other_at] = program[other_at], program[one]
    return True


def _readdress(programs: _Programs, _: int, rng: random.Random) -> bool:
    rank, at = _place(programs, rng)
    kind, peer, chunk = programs[rank][at]
    others = [r for r in range(len(programs)) if r not in (rank, peer)]
    if kind == Kind.FINISH or not others:
        return False
    programs[rank][at] = Step(kind, rng.choice(others), chunk)
    return True


def _other_chunk(programs: _Programs, num_chunks: int, rng: random.Random) -> bool:
    rank, at = _place(programs, rng)
    kind, peer, chunk = programs[rank][at]
    if num_chunks == 1:
        return False
    other = (chunk + rng.randrange(1, num_chunks)) % num_chunks
    programs[rank][at] = Step(kind, peer, other)
    return True


def _other_kind(programs: _Programs, _: int, rng: random.Random) -> bool:
    rank, at = _place(programs, rng)
    kind, peer, chunk = programs[rank][at]
    swapped = {Kind.RECEIVE: Kind.REDUCE, Kind.REDUCE: Kind.RECEIVE}
    if kind not in swapped:
        return False
    programs[rank][at] = Step(swapped[kind], peer, chunk)
    return True


def _message(
    programs: _Programs, rng: random.Random
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns the two sides of a message: where it is sent, and where received."""
    sends = [
        (r, i)
        for r, p in enumerate(programs)
        for i, step in enumerate(p)
        if step.kind == Kind.SEND
    ]
    rank, at = rng.choice(sends)
    peer = programs[rank][at].peer
    earlier = sum(s.kind == Kind.SEND and s.peer == peer for s in programs[rank][:at])
    taken = [
        i
        for i, step in enumerate(programs[peer])
        if step.peer == rank and step.kind in (Kind.RECEIVE, Kind.REDUCE)
    ]
    return (rank, at), (peer, taken[earlier])


def _drop_message(programs: _Programs, _: int, rng: random.Random) -> bool:
    for rank, at in _message(programs, rng):
        del programs[rank][at]
    return True


def _duplicate_message(programs: _Programs, _: int, rng: random.Random) -> bool:
    for rank, at in _message(programs, rng):
        programs[rank].insert(at, programs[rank][at])
    return True


def _move_message(programs: _Programs, _: int, rng: random.Random) -> bool:
    """Another rank receives it, in place of the one that should."""
    (rank, at), (peer, taken) = _message(programs, rng)
    others = [r for r in range(len(programs)) if r not in (rank, peer)]
    if not others:
        return False
    step = programs[peer].pop(taken)
    other = rng.choice(others)
    programs[rank][at] = Step(Kind.SEND, other, step.chunk)
    # At its end: what is added earlier may still come to where it should, that way.
    programs[other].append(step)
    return True


def _other_chunk_of_message(
    programs: _Programs, num_chunks: int, rng: random.Random
) -> bool:
    if num_chunks == 1:
        return False
    by = rng.randrange(1, num_chunks)
    for rank, at in _message(programs, rng):
        kind, peer, chunk = programs[rank][at]
        programs[rank][at] = Step(kind, peer, (chunk + by) % num_chunks)
    return True


MUTATIONS: dict[str, Callable[[_Programs, int, random.Random], bool]] = {
    "dropped": _drop,
    "duplicated": _duplicate,
    "reordered": _reorder,
    "re-addressed": _readdress,
    "another chunk": _other_chunk,
    "another kind": _other_kind,
    "message dropped": _drop_message,
    "message duplicated": _duplicate_message,
    "message re-addressed": _move_message,
    "message of another chunk": _other_chunk_of_message,
}
"""The mistakes that `mutated` makes, by name."""


def follow_at_random(
    schedule: Schedule, values: list[list[float]], rng: random.Random
) -> list[list[float]]:
    """Carries a schedule out on numbers, taking at random any step that may be next.

    It knows nothing of the verifier, so that each can prove the other: steps on one
    chunk, to one peer, and from one peer keep their order, and a message is taken when
    both sides are ready.

    Args:
        schedule: What is carried out.
        values: One number for each rank and chunk; finishing changes nothing.
        rng: Chooses among the steps.

    Returns:
        The numbers at the end.

    Raises:
        ScheduleError: No step may be next, and some are left; or two ranks disagree on
            what is sent.
    """
    found = [list(row) for row in values]
    left = [list(program) for program in schedule.programs]
    while any(left):
        choices = [
            (rank, at)
            for rank, program in enumerate(left)
            for at in range(len(program))
            if _is_next(program, at) and program[at].kind in (Kind.SEND, Kind.FINISH)
        ]
        rng.shuffle(choices)
        for rank, at in choices:
            kind, peer, chunk = left[rank][at]
            if kind == Kind.FINISH:
                break
            there = next(
                (
                    i
                    for i, step in enumerate(left[peer])
                    if step.peer == rank and step.kind in (Kind.RECEIVE, Kind.REDUCE)
                ),
                None,
            )
            if there is None or not _is_next(left[peer], there):
                continue
            step = left[peer].pop(there)
            if step.chunk != chunk:
                message = f"rank {rank} sends {chunk}, rank {peer} takes {step.chunk}"
                raise ScheduleError(message)
            sent = found[rank][chunk]
            adds = step.kind == Kind.REDUCE
            found[peer][chunk] = sent + found[peer][chunk] * adds
            break
        else:
            message = "no step may be next"
            raise ScheduleError(message)
        del left[rank][at]
    return found


def _is_next(program: list[Step], at: int) -> bool:
    kind, peer, chunk = program[at]
    for before in program[:at]:
        sends = before.kind == Kind.SEND
        same_lane = before.peer == peer and sends is (kind == Kind.SEND)
        if before.chunk == chunk:
            return False
        if same_lane and Kind.FINISH not in (kind, before.kind):
            return False
    return True
