"""Carries out an all-reduce on symbols, to prove that it adds each rank exactly once."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from drivetrain_comm._steps import Kind, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["find_fault"]


def find_fault(programs: Sequence[Sequence[Step]], num_chunks: int) -> str | None:
    """Returns what is wrong with the steps of all ranks, or None.

    Each rank follows its list by itself and waits only for what a peer has yet to send,
    which is the strictest order: what ends here ends in the engine as well.

    Args:
        programs: The steps of each rank.
        num_chunks: Into how many chunks the vector is cut.

    Example:
        >>> from drivetrain_comm.algorithms import ring
        >>> whole = [ring.all_reduce(range(3), rank, range(3)) for rank in range(3)]
        >>> find_fault(whole, 3)
        >>> find_fault([whole[0], whole[1], whole[2][:-2]], 3)
        'rank 0 waits for chunk 1 of rank 2'
    """
    size = len(programs)
    held = [[Counter({rank: 1}) for _ in range(num_chunks)] for rank in range(size)]
    finished = Counter[int]()
    wires: dict[tuple[int, int], deque[tuple[int, Counter[int]]]] = {}
    at = [0] * size
    while True:
        has_moved = False
        for rank, program in enumerate(programs):
            while at[rank] < len(program):
                kind, peer, chunk = program[at[rank]]
                if kind == Kind.FINISH:
                    finished[chunk] += 1
                elif kind == Kind.SEND:
                    wire = wires.setdefault((rank, peer), deque())
                    wire.append((chunk, Counter(held[rank][chunk])))
                else:
                    wire = wires.get((peer, rank), deque())
                    if not wire:
                        break
                    sent, value = wire.popleft()
                    if sent != chunk:
                        return (
                            f"rank {peer} sends chunk {sent} to rank {rank}, which "
                            f"expects chunk {chunk}"
                        )
                    if kind == Kind.REDUCE:
                        value += held[rank][chunk]
                    held[rank][chunk] = value
                at[rank] += 1
                has_moved = True
        if not has_moved:
            break
    return _stuck(programs, at) or _wrong(held, finished, wires, num_chunks)


def _stuck(programs: Sequence[Sequence[Step]], at: Sequence[int]) -> str | None:
    for rank, program in enumerate(programs):
        if at[rank] < len(program):
            step = program[at[rank]]
            return f"rank {rank} waits for chunk {step.chunk} of rank {step.peer}"
    return None


def _wrong(
    held: Sequence[Sequence[Counter[int]]],
    finished: Counter[int],
    wires: dict[tuple[int, int], deque[tuple[int, Counter[int]]]],
    num_chunks: int,
) -> str | None:
    for (rank, peer), wire in wires.items():
        if wire:
            return f"rank {peer} never takes chunk {wire[0][0]} of rank {rank}"
    size = len(held)
    everyone = Counter(dict.fromkeys(range(size), 1))
    for rank, chunks in enumerate(held):
        for chunk, value in enumerate(chunks):
            if value == everyone:
                continue
            twice = [source for source, count in value.items() if count > 1]
            return (
                f"chunk {chunk} of rank {rank} holds rank {twice[0]} twice"
                if twice
                else f"chunk {chunk} of rank {rank} holds {len(value)} of {size} "
                "contributions at the end"
            )
    for chunk in range(num_chunks):
        if finished[chunk] != 1:
            return f"chunk {chunk} is finished {finished[chunk]} times"
    return None
