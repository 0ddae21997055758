"""What becomes of the step in flight when a rank is gone.

A step of data-parallel training, on every rank:

    forward -> backward -> reduce gradients -> apply the update -> vote -> next step

A reduction ends on a rank only if all ranks have contributed; it may have ended on some of
them, and not on others, when one dies. The vote is a reduction of nothing, which a rank
enters when it has its reduced gradients, and it must have ended before a rank drops them,
in the backward pass of the next step. Where they are small they are kept until those of the
next step are there, which is a vote as well. So there are two cases, and what the survivors
know tells them apart:

- nobody has all of the step's reduced gradients: nobody has applied them, and all make the
  step again;
- somebody has: they are still there, or everybody has them. Whoever lacks them takes them
  from a survivor, and all apply the same update, bit by bit.

Either way all survivors stand at the same step. No step is lost, and at most one is made
again.

Where several ranks hold a copy of the model together, gradients are reduced among the
ranks that hold the same part of it. One of those reductions may end while another is
broken off, so that there the vote of all ranks comes before the update: who has applied
it proves that everybody has the gradients, and if nobody has, all make the step again.
The ranks of a copy agree among themselves on how the vote has ended, and do the same.
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
        reduced: The last step whose reduced gradients it has got whole.
        is_new: Whether it has no state yet.
        node: Where it runs.
        part: Which part of the model it holds.
        epoch: Of the last world in which it came to the same step as all others.
        is_spent: Whether its update has changed the gradients of its last step.
    """

    applied: int
    reduced: int
    is_new: bool = False
    node: str = ""
    part: int = 0
    epoch: int = 0
    is_spent: bool = False


class Do(StrEnum):
    """What a rank does before the next step."""

    NOTHING = "nothing"
    APPLY = "apply its gradients"
    TAKE_GRADIENTS = "take gradients"
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
        actions: By rank. Gradients travel first; states when their sources have applied.
    """

    step: int
    actions: tuple[Action, ...]


def resolve(progress: Sequence[Progress], *, votes_first: bool = False) -> Resolution:
    """Decides what each rank of a new world does about the step in flight.

    A rank that was not in the last world in which all came to the same step, or did not
    get that far in it, takes the state anew: others may be steps ahead, and have none of
    the gradients that it lacks.

    Args:
        progress: Of each rank, in their order.
        votes_first: Whether updates are applied after the vote, as they are where the
            model has several parts.

    Raises:
        DistributedError: No rank has any state, or the ranks cannot have come so far
            together.

    Example:
        >>> step, actions = resolve([
        ...     Progress(applied=7, reduced=7),  # it was first
        ...     Progress(applied=6, reduced=7),
        ...     Progress(applied=6, reduced=6),  # the reduction broke off here
        ...     Progress(applied=0, reduced=0, is_new=True),
        ... ])
        >>> step, [action.do.value for action in actions]
        (7, ['nothing', 'apply its gradients', 'take gradients', 'take the state'])
    """
    old = [rank for rank, one in enumerate(progress) if not one.is_new]
    if not old:
        message = "no rank of this world has the state of the training"
        raise DistributedError(message)
    newest = max(progress[rank].epoch for rank in old)
    old = [rank for rank in old if progress[rank].epoch == newest]
    if votes_first:
        step = max(progress[rank].applied for rank in old)
    else:
        step = max(progress[rank].reduced for rank in old)
    for rank in old:
        _check(rank, progress[rank], step)
    # Who has what others lack: the step's gradients, and so the state after it.
    owners = [rank for rank in old if progress[rank].reduced >= step]
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

    actions = []
    for rank, one in enumerate(progress):
        if rank not in old:
            actions.append(Action(Do.TAKE_STATE, source_for(rank)))
        elif one.applied == step:
            actions.append(Action(Do.NOTHING))
        elif one.reduced >= step:
            actions.append(Action(Do.APPLY))
        else:
            source = source_for(rank)
            # The same update would not come of them a second time.
            is_spent = progress[source].is_spent
            do = Do.TAKE_STATE if is_spent else Do.TAKE_GRADIENTS
            actions.append(Action(do, source))
    return Resolution(step, tuple(actions))


def _check(rank: int, one: Progress, step: int) -> None:
    """Sees to it that a rank is where the vote lets it be."""
    if not (one.applied <= one.reduced <= one.applied + 1 and one.applied >= step - 1):
        message = (
            f"rank {rank} has applied step {one.applied} and reduced step {one.reduced} "
            f"while another rank has step {step}"
        )
        raise DistributedError(message)
