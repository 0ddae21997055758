"""World of ranks: the process groups of one membership epoch, and how ranks gather."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistStoreError

from drivetrain_core import DistributedError
from drivetrain_elastic._client._rendezvous_store import rendezvous_store
from drivetrain_elastic._membership._world_group import WorldGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import Store

    from drivetrain_core.services import ProcessGroupFactory
    from drivetrain_elastic._membership._rank_assignment import RankAssignment

# So often it is looked whether the world still stands.
_LOOK = timedelta(milliseconds=50)
_REPEAT_S = 1.0
_FINISHED = "finished"


class World:
    """The ranks of one world. `abort` may be called from any thread, the rest not.

    Args:
        assignment: Of this rank.
        factory: Makes process groups.
        store: Where the ranks of all worlds meet.
        timeout: How long ranks wait for each other.

    Attributes:
        assignment: Of this rank.

    Raises:
        RuntimeError: Not all ranks came in time.
    """

    def __init__(
        self,
        assignment: RankAssignment,
        factory: ProcessGroupFactory,
        store: Store,
        timeout: timedelta,
    ) -> None:
        self.assignment = assignment
        self._groups: list[WorldGroup] = []

        def make(name: str, rank: int, world_size: int) -> ProcessGroup:
            with rendezvous_store(store, f"world/{assignment.epoch}/{name}") as room:
                made = WorldGroup(
                    factory,
                    room,
                    epoch=assignment.epoch,
                    rank=rank,
                    world_size=world_size,
                    timeout=timeout,
                )
            self._groups.append(made)
            return made.group

        try:
            self._everyone = make("all", assignment.rank, len(assignment.members))
            self._peers = self._everyone
            if assignment.unit > 1:
                self._peers = make(
                    f"part/{assignment.part}", assignment.copy, assignment.num_copies
                )
        except BaseException:
            self.close()
            raise

    @property
    def everyone(self) -> ProcessGroup:
        """All ranks."""
        return self._everyone

    @property
    def peers(self) -> ProcessGroup:
        """The ranks that have the same part of the model: all, if it has no parts."""
        return self._peers

    @property
    def is_broken(self) -> bool:
        """Whether it was aborted."""
        return any(group.is_broken for group in self._groups)

    def abort(self) -> None:
        """Ends all operations of this rank and of its peers, with errors."""
        for group in self._groups:
            group.abort()

    def close(self) -> None:
        """Aborts what is under way, and lets go of the groups."""
        for group in self._groups:
            group.close()


def tell_finished(store: Store, step: int) -> None:
    """Tells all ranks, of this world and later ones, that the last step counts."""
    store.set(_FINISHED, str(step))


def is_finished(store: Store) -> bool:
    """Returns whether a rank has told that the last step counts."""
    return bool(store.check([_FINISHED]))


def call_roll(
    assignment: RankAssignment,
    store: Store,
    *,
    patience_s: float,
    is_over: Callable[[], bool],
) -> bool:
    """Waits for all ranks of a world; returns whether it still stands then.

    Making a group cannot be aborted, so that it is begun only with all there. A rank may
    compute for long before it comes; one that never does is for its agent to find. Ranks
    that have made all steps before they heard of the world do not come.

    Args:
        assignment: Of this rank.
        store: Where the ranks of all worlds meet.
        patience_s: How long to wait.
        is_over: Whether the world has been replaced.

    Raises:
        DistributedError: Not all ranks came in time.
    """
    keys = [
        f"world/{assignment.epoch}/here/{rank}"
        for rank in range(len(assignment.members))
    ]
    end_s = time.monotonic() + patience_s
    store.set(keys[assignment.rank], "1")
    repeat_s = time.monotonic() + _REPEAT_S
    while True:
        if time.monotonic() >= repeat_s:
            if is_finished(store):
                return False
            # A store that has lost its memory meanwhile is told again.
            store.set(keys[assignment.rank], "1")
            repeat_s = time.monotonic() + _REPEAT_S
        with contextlib.suppress(DistStoreError):
            store.wait(keys, _LOOK)
            return True
        if is_over():
            return False
        if time.monotonic() > end_s:
            message = f"not all ranks of world {assignment.epoch} came within {patience_s:g} s"
            raise DistributedError(message)


def end_together(
    assignment: RankAssignment, store: Store, step: int, is_over: Callable[[], bool]
) -> bool:
    """Waits for the scripts of all ranks to end; returns whether the training ends so.

    It does if all have left it after the same step. A rank that goes on waits for those
    that are here, until the world is broken.

    Args:
        assignment: Of this rank.
        store: Where the ranks of all worlds meet.
        step: The last one that counts here.
        is_over: Whether the world has been replaced.
    """
    keys = [
        f"world/{assignment.epoch}/left/{rank}"
        for rank in range(len(assignment.members))
    ]
    store.set(keys[assignment.rank], str(step))
    while not is_over():
        with contextlib.suppress(DistStoreError):
            store.wait(keys, _LOOK)
            if any(store.get(key) != str(step).encode() for key in keys):
                return False
            tell_finished(store, step)
            return True
    return False
