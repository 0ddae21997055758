"""What MSCCL XML is made of: thread blocks, their steps, and a collective's buffers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drivetrain_comm.algorithms._steps import Kind

if TYPE_CHECKING:
    from drivetrain_comm.algorithms._steps import Step

COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
}
TYPES = {Kind.SEND: "s", Kind.RECEIVE: "r", Kind.REDUCE: "rrc"}
NOP = "nop"


@dataclass
class Entry:
    """A step of a thread block.

    Args:
        step: What it does; None for nothing.
        waits_for: The (block, step) that must be done before, or None.
    """

    step: Step | None
    waits_for: tuple[int, int] | None


@dataclass
class Block:
    """A thread block.

    Args:
        send: Whom it sends to, or -1.
        receive: Whom it receives from, or -1.
        entries: Its steps, in their order.
    """

    send: int
    receive: int
    entries: list[Entry] = field(default_factory=list)


@dataclass(frozen=True)
class Form:
    """What a collective in place looks like.

    Args:
        buffer: The letter of the buffer that it works on.
        inputs: How many chunks go in.
        outputs: How many chunks come out beside them.
    """

    buffer: str
    inputs: int
    outputs: int


def form_of(collective: str, num_ranks: int, num_chunks: int) -> Form:
    """Returns the form of a collective.

    Args:
        collective: As schedules name it.
        num_ranks: How many ranks take part.
        num_chunks: Into how many chunks the vector is cut.
    """
    part = num_chunks // num_ranks
    if collective == "all_gather":
        return Form("o", part, num_chunks)
    return Form("i", num_chunks, part if collective == "reduce_scatter" else 0)
