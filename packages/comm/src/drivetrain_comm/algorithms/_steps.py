"""Steps of one rank in a collective, on chunks of a vector.

A step waits for those before it that touch the same chunk and for no others, so that
the order of a list is only the order in which one rank alone could follow it. Steps to
one peer, and steps from it, happen in the order in which they stand; the peer must list
its own side of them in the same order.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """What a step does; the numbers are those of the native engine."""

    SEND = 0
    RECEIVE = 1
    REDUCE = 2
    FINISH = 3


class Step(NamedTuple):
    """One step of one rank.

    Attributes:
        kind: SEND the chunk; RECEIVE it in place of one's own; REDUCE a peer's into
            one's own; FINISH it, now that it is reduced (an average divides).
        peer: The other rank; -1 for FINISH.
        chunk: The chunk, from 0.
    """

    kind: Kind
    peer: int
    chunk: int
