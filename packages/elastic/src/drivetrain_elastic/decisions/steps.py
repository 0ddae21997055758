"""What becomes of the step in flight when a rank is gone.

A step of data-parallel training, on every rank:

    forward -> backward -> reduce gradients -> apply the update -> next step

A reduction ends on a rank only if all ranks have contributed; it may have ended on some of
them, and not on others, when one dies. No rank is ever two steps ahead of another one, since
the next reduction takes all of them. What the survivors know tells two cases apart:

- nobody has applied the step's update: all make the step again;
- somebody has: whoever has not takes the state from one that has.

Gradients alone would not do in the second case: what the script does with them in the step,
to a schedule or to an average of weights, it has not done on a rank that never had them.

Either way all survivors stand at the same step. No step is lost, and at most one is made
again. Ranks that go, at the end or to another world, wait for a vote first, a reduction of
nothing that each rank enters after its update: nobody then lacks what only they have.

Where several ranks hold a copy of the model together, gradients are reduced among the
ranks that hold the same part of it. One of those reductions may end while another is
broken off, so that there all ranks vote as soon as they have their sums, before anything is
done with them: who has applied the update proves that everybody has the gradients, and if
nobody has, all make the step again. The ranks of a copy agree among themselves on how the
vote has ended, and do the same.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Progress(NamedTuple):
    """How far a rank is. Steps count from 1.

    Attributes:
        applied: The last step whose update it has applied; 0 before the first.
        is_new: Whether it has no state yet.
        node: Where it runs.
        part: Which part of the model it holds.
        epoch: Of the last world in which it came to the same step as all others.
    """

    applied: int
    is_new: bool = False
    node: str = ""
    part: int = 0
    epoch: int = 0


class Do(StrEnum):
    """What a rank does before the next step."""

    NOTHING = "nothing"
    TAKE_STATE = "take the state"


class Action(NamedTuple):
    """What one rank does, and from whom it takes what it lacks.

    Attributes:
        do: What.
        source: The rank that gives; -1 where nothing is taken.
    """

    do: Do
    source: int = -1


class Resolution(NamedTuple):
    """Where all ranks stand, once each has done its part.

    Attributes:
        step: The last step that is applied everywhere.
        actions: By rank.
    """

    step: int
    actions: tuple[Action, ...]


def resolve(progress: Sequence[Progress]) -> Resolution:
    """Decides what each rank of a new world does about the step in flight.

    A rank that was not in the last world in which all came to the same step, or did not
    get that far in it, takes the state anew, as one does that has applied fewer steps.

    Args:
        progress: Of each rank, in their order.

    Raises:
        DistributedError: No rank has any state, or none that of one of its parts.

    Example:
        >>> step, actions = resolve([
        ...     Progress(applied=7),  # it was first
        ...     Progress(applied=6),  # the reduction broke off here
        ...     Progress(applied=0, is_new=True),
        ... ])
        >>> step, [action.do.value for action in actions]
        (7, ['nothing', 'take the state', 'take the state'])
    """
    old = [rank for rank, one in enumerate(progress) if not one.is_new]
    if not old:
        message = "no rank of this world has the state of the training"
        raise DistributedError(message)
    newest = max(progress[rank].epoch for rank in old)
    old = [rank for rank in old if progress[rank].epoch == newest]
    step = max(progress[rank].applied for rank in old)
    owners = [rank for rank in old if progress[rank].applied == step]
    num_taken: Counter[int] = Counter()

    def source_for(taker: int) -> int:
        one = progress[taker]
        able = [rank for rank in owners if progress[rank].part == one.part]
        if not able:
            message = f"no rank has part {one.part} of the state of the training"
            raise DistributedError(message)
        best = min(
            able, key=lambda rank: (num_taken[rank], progress[rank].node != one.node)
        )
        num_taken[best] += 1
        return best

    actions = [
        Action(Do.NOTHING)
        if rank in owners
        else Action(Do.TAKE_STATE, source_for(rank))
        for rank in range(len(progress))
    ]
    return Resolution(step, tuple(actions))
