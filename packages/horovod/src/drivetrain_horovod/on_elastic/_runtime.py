"""This process among the ranks of a job, from one world to the next."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from drivetrain_core import DistributedError, DrivetrainError
from drivetrain_elastic.decisions.leaving import NO_CHECKPOINTER
from drivetrain_elastic.extending import (
    Connection,
    RankAssignment,
    RankLostError,
    SingleProcessMembership,
    World,
    call_roll,
    connect,
    is_finished,
    tell_finished,
    with_others,
)
from drivetrain_horovod.on_elastic._errors import (
    HorovodInternalError,
    NotInitializedError,
)
from drivetrain_horovod.on_elastic._place import Claim, Place, agree_on_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor
    from torch.distributed import ProcessGroup

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_MOST_BROKEN = 30
_LONGEST_WAIT_S = 5.0
# Scripts evaluate on one rank while the others wait; whoever is gone ends their wait.
_TIMEOUT_S = 1800.0


@dataclass(kw_only=True, slots=True)
class Options:
    """What a launcher has said for the whole process.

    Attributes:
        elastic_timeout_s: How long to wait for a world.
        reset_limit: How often worlds may follow each other; None for any number.
    """

    elastic_timeout_s: float = 600.0
    reset_limit: int | None = None


options = Options()


class _LoneWorlds(SingleProcessMembership):
    """Worlds of one: the next one is there as soon as it is asked for."""

    def __init__(self) -> None:
        self._epoch = 0

    def latest(self) -> RankAssignment:
        """Returns the world that was asked for last."""
        return RankAssignment(max(1, self._epoch), 0, ("this",), ("here",))

    def wait(self, newer_than: int, timeout_s: float) -> RankAssignment:
        """Returns a newer world."""
        del timeout_s  # nobody else has to come
        self._epoch = newer_than + 1
        return self.latest()


class Runtime:
    """A process and its world. Used from one thread, but for what it hears of worlds.

    Args:
        connection: To whoever tells of worlds; that of the environment by default.
        patience_s: How long to wait for a world.

    Attributes:
        place: This rank's numbers in the world.
        epoch: Of the world that it was in last; 0 before the first.
        members: The names of the workers of that world.
        num_commits: How often the state was committed.
        has_state: Whether the state is that of the training, rather than a new one.

    Raises:
        DistributedError: The agent does not answer, or no world came in time.
    """

    def __init__(
        self, connection: Connection | None = None, *, patience_s: float
    ) -> None:
        membership, self._store, make = connection or connect()
        self._membership = (
            _LoneWorlds()
            if isinstance(membership, SingleProcessMembership)
            else membership
        )
        self._factory = make()
        self._patience_s = patience_s
        self._world: World | None = None
        self._listeners: list[Callable[[RankAssignment], None]] = []
        self._committed_s = time.monotonic()
        self._num_broken = 0
        self.place = Place((0,), 0, ("",), False)
        self.epoch = 0
        self.members: tuple[str, ...] = ()
        self.num_commits = 0
        self.has_state = False
        self._unsubscribe = self._membership.subscribe(self._hear)

    # ---- collectives ----

    @contextlib.contextmanager
    def group(self) -> Iterator[ProcessGroup]:
        """Gives the process group of the world; its errors become Horovod's.

        Raises:
            HorovodInternalError: A rank is lost.
        """
        world = self._world
        if world is None or self._is_broken():
            raise _broken_off(self.epoch)
        self._membership.report_phase("waiting for others")
        try:
            yield world.everyone
        except RuntimeError as error:
            if isinstance(error, DrivetrainError):
                raise
            raise HorovodInternalError(str(error)) from error
        finally:
            self._membership.report_phase("training")
        if self._is_broken():
            # On a GPU that ends what is under way as if it were done.
            raise _broken_off(self.epoch)

    def _is_broken(self) -> bool:
        return self._world is None or self._world.is_broken

    # ---- news ----

    def listen(self, heard: Callable[[RankAssignment], None]) -> Callable[[], None]:
        """Calls a function, from a thread, for each world; returns what ends that."""
        self._listeners.append(heard)
        return lambda: self._listeners.remove(heard)

    def _hear(self, assignment: RankAssignment) -> None:
        world = self._world
        if world is not None and assignment.broken_epoch >= world.assignment.epoch:
            world.abort()
        for heard in list(self._listeners):
            heard(assignment)

    def news(self) -> tuple[bool, bool]:
        """Returns whether there is a newer world, and whether somebody is new in it."""
        latest = self._membership.latest()
        if latest is None or latest.epoch <= self.epoch:
            return False, False
        return True, not set(latest.members) <= set(self.members)

    def commit(self) -> None:
        """Notes that the state was committed."""
        self.num_commits += 1
        now_s = time.monotonic()
        self._membership.report_step(self.num_commits, now_s - self._committed_s)
        self._committed_s = now_s

    # ---- worlds ----

    def start(self) -> bool:
        """Says that this worker can take a place, and enters its first world."""
        self._membership.report_ready()
        return self.enter(is_live=True, may_skip=False)

    def break_world(self, reason: str) -> None:
        """Leaves the world, since its collectives fail; others are told to."""
        latest = self._membership.latest()
        if latest is None or latest.epoch <= self.epoch:
            logger.info("world %d is broken: %s", self.epoch, reason)
            self._membership.report_broken(self.epoch, reason)
        self._leave()

    def leave_world(self) -> None:
        """Leaves the world, as all of its ranks do now."""
        # Whoever has heard of it is in no need of the others any more.
        with contextlib.suppress(HorovodInternalError), self.group() as group:
            group.allreduce([torch.zeros(1)]).wait()
        self._leave()

    def _leave(self) -> None:
        if self._world is not None:
            self._world.abort()
            self._world.close()
            self._world = None

    def enter(self, *, is_live: bool, may_skip: bool) -> bool:
        """Enters a newer world; returns whether there is still something to be done.

        Args:
            is_live: Whether the state is as it was, rather than what was committed.
            may_skip: Whether this rank was told that nobody comes.

        Raises:
            DistributedError: No world came in time.
        """
        self._membership.report_phase("waiting for a world")
        before = self.epoch
        # One that stands by waits for as long as the job goes on.
        end_s = time.monotonic() + self._patience_s if before else math.inf
        while not is_finished(self._store):
            assignment = self._membership.wait(self.epoch, _LOOK_S)
            if assignment is None or assignment.rank < 0:
                if self._membership.is_leaving():
                    return False
                if assignment is not None:
                    self.epoch, end_s = assignment.epoch, math.inf
                elif time.monotonic() > end_s:
                    message = f"no world after {self.epoch} came within {self._patience_s:g} s"
                    raise DistributedError(message)
                continue
            self.epoch = assignment.epoch
            claim = Claim(self.has_state, self.num_commits, is_live, may_skip, before)
            try:
                if not self._form(assignment, claim):
                    continue
            except RankLostError as error:
                self._wait_before_the_next(error)
                self.break_world(str(error))
                continue
            self._num_broken = 0
            self.members = assignment.members
            self._membership.report_phase("training")
            return True
        return False

    def _form(self, assignment: RankAssignment, claim: Claim) -> bool:
        """Makes a world with its other ranks; returns whether it still stands.

        Raises:
            RankLostError: One of them is gone.
        """
        if not call_roll(
            assignment, self._store, patience_s=self._patience_s, is_over=self._is_over
        ):
            return False
        with with_others():
            timeout = timedelta(seconds=_TIMEOUT_S)
            self._world = World(assignment, self._factory, self._store, timeout)
        # What was heard while the group was made found none to break off.
        latest = self._membership.latest()
        if latest is not None:
            self._hear(latest)
        mine = torch.tensor([int(part) for part in claim])
        rows: list[Tensor] = [torch.zeros_like(mine) for _ in assignment.members]
        with with_others():
            self._world.everyone.allgather([rows], [mine]).wait()
        claims = [
            Claim(bool(row[0]), int(row[1]), bool(row[2]), bool(row[3]), int(row[4]))
            for row in rows
        ]
        self.place = agree_on_place(assignment, claims)
        if assignment.epoch > 1 and not any(one.has_state for one in claims):
            logger.warning(
                "no rank of world %d has the state: it is new", assignment.epoch
            )
        logger.info(
            "rank %d of %d in world %d",
            self.place.rank,
            self.place.size,
            assignment.epoch,
        )
        return True

    def _is_over(self) -> bool:
        latest = self._membership.latest()
        return latest is not None and latest.epoch > self.epoch

    def _wait_before_the_next(self, error: RankLostError) -> None:
        """Gives those who form worlds again and again more and more time."""
        self._num_broken += 1
        if self._num_broken > _MOST_BROKEN:
            message = (
                f"{self._num_broken} worlds in a row broke as they formed, the last one "
                f"with: {error}"
            )
            raise DistributedError(message) from error
        if self._num_broken > 1:
            time.sleep(min(_LONGEST_WAIT_S, 0.01 * 2**self._num_broken))

    # ---- the end ----

    def finish(self) -> None:
        """Notes that the training has ended, once all ranks are at its end.

        Raises:
            HorovodInternalError: A rank is lost before its end.
        """
        with self.group() as group:
            group.allreduce([torch.zeros(1)]).wait()
        tell_finished(self._store, self.num_commits)
        self.report_end(is_finished=True)

    def is_finished(self) -> bool:
        """Whether a rank has told that all are at the end."""
        return is_finished(self._store)

    def report_end(self, *, is_finished: bool) -> None:
        """Tells that this worker is at the end, or has left before."""
        self._membership.report_phase("ending")
        request = self._membership.checkpoint_request()
        if request is not None and not is_finished:
            # What was committed is in memory only, and what the script saves is its own.
            step, why = self.num_commits, NO_CHECKPOINTER
            self._membership.report_saved(request, step, 0.0, why)
        self._membership.report_end(is_finished=is_finished)

    def close(self) -> None:
        """Leaves the world, and hears of no other one."""
        self._unsubscribe()
        self._leave()


def _broken_off(epoch: int) -> HorovodInternalError:
    return HorovodInternalError(f"world {epoch} was broken off")


_current: list[Runtime] = []


def found() -> bool:
    """Whether this process is among the ranks of a job."""
    return bool(_current)


def runtime() -> Runtime:
    """Returns what `begin` has made.

    Raises:
        NotInitializedError: It was not called.
    """
    if not _current:
        message = "nothing is initialized here; call init() first"
        raise NotInitializedError(message)
    return _current[0]


def begin(connection: Connection | None = None) -> None:
    """Enters the job's world; a worker whose job has ended ends as well.

    Args:
        connection: To whoever tells of worlds; that of the environment by default.
    """
    if _current:
        return
    one = Runtime(connection, patience_s=options.elastic_timeout_s)
    _current.append(one)
    atexit.register(end)
    if not one.start():
        one.report_end(is_finished=False)
        end()
        raise SystemExit(0)


def finish_once() -> None:
    """Notes that the script is at its end, if it has no part that is elastic.

    Nobody else says so: its workers would be started again, and would train again.
    """
    for one in _current:
        if not one.has_state:
            one.finish()
            one.has_state = True


def end() -> None:
    """Leaves the job."""
    atexit.unregister(end)
    while _current:
        _current.pop().close()
