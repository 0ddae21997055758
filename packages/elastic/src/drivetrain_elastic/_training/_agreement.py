"""Agreement of the ranks of a new world on the step that they continue from."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from drivetrain_elastic._membership._world_group import with_others
from drivetrain_elastic.decisions.steps import Do, Progress, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup

    from drivetrain_elastic._membership._world import World
    from drivetrain_elastic._training._training_state import Training
    from drivetrain_elastic.decisions.steps import Resolution

logger = logging.getLogger(__name__)


def agree(training: Training, world: World, *, begin: Callable[[], None]) -> str:
    """Brings this rank to the step of all others; each rank does the same.

    Args:
        training: Of this rank.
        world: Its new world.
        begin: Called in the first copy if no rank has the state: looks for one elsewhere.

    Returns:
        What was done here, for people.

    Raises:
        RankLostError: A rank is gone.
        DistributedError: No rank has the state.
    """
    mine = torch.tensor([training.step, not training.has_state, training.epoch])
    assignment = world.assignment
    rows = _gather(world.everyone, mine, len(assignment.members))
    if all(is_new for _, is_new, _ in rows):
        if assignment.copy == 0:
            begin()
        done = _begin_alike(training, world)
    else:
        places = enumerate(zip(rows, assignment.nodes, strict=True))
        resolution = resolve(
            [
                Progress(step, bool(is_new), node, rank % assignment.unit, epoch)
                for rank, ((step, is_new, epoch), node) in places
            ]
        )
        done = _carry_out(resolution, training, world)
    training.epoch = assignment.epoch
    return done


def _begin_alike(training: Training, world: World) -> str:
    """Gives the state of the first copy to those that differ."""
    assignment, peers = world.assignment, world.peers
    digests = _gather(peers, torch.tensor([training.digest()]), assignment.num_copies)
    num_differ = 0
    for taker, digest in enumerate(digests):
        if digest == digests[0]:
            continue
        num_differ += 1
        if assignment.copy == 0:
            training.give(peers, taker)
        elif assignment.copy == taker:
            training.take(peers, 0)
    training.has_state = True
    if assignment.epoch > 1 and assignment.rank == 0:
        logger.warning(
            "no rank of world %d has the state: the training begins at step %d",
            *(assignment.epoch, training.step + 1),
        )
    return f"{num_differ} copies took the state of the first one"


def _carry_out(resolution: Resolution, training: Training, world: World) -> str:
    assignment, peers, actions = world.assignment, world.peers, resolution.actions
    for rank in assignment.peers:
        action, taker = actions[rank], rank // assignment.unit
        if action.do != Do.TAKE_STATE:
            continue
        if rank == assignment.rank:
            training.take(peers, action.source // assignment.unit)
        elif action.source == assignment.rank:
            training.give(peers, taker)
    return actions[assignment.rank].do.value


def _gather(group: ProcessGroup, mine: torch.Tensor, num: int) -> list[list[int]]:
    all_ = [torch.zeros_like(mine) for _ in range(num)]
    with with_others():
        group.allgather([all_], [mine]).wait()
    return [row.tolist() for row in all_]
