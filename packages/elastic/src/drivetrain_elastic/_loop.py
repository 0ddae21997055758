"""A training loop whose survivors go on: the same steps, on whatever ranks there are."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from drivetrain_core import DistributedError, ProgramError
from drivetrain_elastic._group import WorldGroup
from drivetrain_elastic._reducer import GradientReducer
from drivetrain_elastic._transfer import give_state, state_digest, take_state
from drivetrain_elastic.decisions.steps import Do, Progress, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping
    from datetime import timedelta
    from typing import Self

    from torch.distributed.distributed_c10d import Store

    from drivetrain_core.services import ProcessGroupFactory
    from drivetrain_elastic._schedule import Part, Schedule
    from drivetrain_elastic._seat import Seat, SeatSource
    from drivetrain_elastic.decisions.steps import Resolution

__all__ = ["ElasticLoop", "Step"]

logger = logging.getLogger(__name__)

_STEP = "drivetrain.step"
_FINISHED = "finished"
_POLL_S = 0.002
_GRADIENTS_TAG = 0x4752


class Step:
    """One step, as a context: what happens in it counts when all ranks have made it.

    Attributes:
        number: From 1. It comes again if a rank is lost before the step counts.
        epoch: Of the world that makes it.
        world_size: The number of ranks that share the global batch.
        rank: This one.
    """

    def __init__(self, loop: ElasticLoop, number: int, seat: Seat) -> None:
        self.number = number
        self.epoch = seat.epoch
        self.world_size = len(seat.members)
        self.rank = seat.rank
        self._loop = loop
        self._has_all = False

    def parts(self) -> Iterator[Part]:
        """Yields what this rank computes; there may be nothing.

        Each part's mean loss is to be multiplied by its weight, and to go backward.
        """
        yield from self._loop._parts()
        self._has_all = True

    def __enter__(self) -> Self:
        self._loop._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        if not self._has_all:
            message = (
                f"step {self.number} was left before all of its parts were computed: its "
                "gradients would be wrong on all ranks"
            )
            raise ProgramError(message)
        self._loop._finish()


class ElasticLoop:
    """Makes the steps of a training on all ranks of a world, and of the next one.

    When a rank is lost, the step in flight is finished or made again, and the rest go on
    with the same global batches; a rank that is new takes the state from another one.

    Args:
        model: On this rank.
        optimizer: Of its parameters.
        schedule: Which samples each step trains on.
        num_steps: How many steps there are.
        seats: Tells of worlds.
        store: Where the ranks of all worlds meet.
        factory: Makes process groups.
        timeout: How long ranks wait for each other.
        state: What else moves to a new rank, by name; the loop's own entries are added.
        num_micro_batches: How many passes a rank makes a step, at most.
        patience_s: How long to wait for a world.

    Attributes:
        step: The last step that counts.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        schedule: Schedule,
        num_steps: int,
        seats: SeatSource,
        store: Store,
        factory: ProcessGroupFactory,
        timeout: timedelta,
        state: MutableMapping[str, object] | None = None,
        num_micro_batches: int = 1,
        patience_s: float = 600.0,
    ) -> None:
        self.step = 0
        self._schedule = schedule
        self._num_steps = num_steps
        self._seats = seats
        self._store = store
        self._factory = factory
        self._timeout = timeout
        self._num_micro_batches = num_micro_batches
        self._patience_s = patience_s
        self._optimizer = optimizer
        self._state: MutableMapping[str, object] = {
            "model": model,
            "optimizer": optimizer,
            **(state or {}),
        }
        self._reducer = GradientReducer(model.parameters())
        self._seat: Seat | None = None
        self._group: WorldGroup | None = None
        self._reduced = 0
        self._has_state = False
        self._vote: tuple[Any, torch.Tensor] | None = None
        self._began_s = 0.0
        self._unsubscribe = seats.subscribe(self._hear)

    def __iter__(self) -> Iterator[Step]:
        """Yields steps until the last one counts, or this worker has no place any more."""
        try:
            while self._prepare():
                assert self._seat is not None
                yield Step(self, self.step + 1, self._seat)
        finally:
            self._unsubscribe()
            self._reducer.close()
            if self._group is not None:
                self._group.close()

    def _prepare(self) -> bool:
        """Comes to the start of the next step; returns whether there is one here."""
        while True:
            if self._seat is None or self._group is None:
                if not self._enter(0 if self._seat is None else self._seat.epoch):
                    return False
                continue
            try:
                pending = self._count_votes()
            except RuntimeError as error:
                if self.step == self._num_steps and self._store.check([_FINISHED]):
                    return False
                self._break(str(error))
                continue
            if pending > self._seat.epoch:
                self._leave_group()
                continue
            if self.step < self._num_steps:
                return True
            # All have the last step, though some may not know it yet: whose vote breaks
            # off, since this rank goes, finds it here.
            self._store.set(_FINISHED, str(self.step))
            return False

    def _begin(self) -> None:
        self._began_s = time.monotonic()
        self._reducer.begin()

    def _parts(self) -> Iterator[Part]:
        assert self._seat is not None
        assert self._group is not None
        parts = self._schedule.parts(
            self.step + 1,
            world_size=len(self._seat.members),
            rank=self._seat.rank,
            num_micro_batches=self._num_micro_batches,
        )
        for at, part in enumerate(parts):
            if at == len(parts) - 1:
                self._reducer.send_with(self._group.group)
            yield part

    def _finish(self) -> None:
        """Reduces, applies and votes; or breaks the world off, and leaves the rest."""
        assert self._group is not None
        try:
            self._reducer.finish(self._group.group)
        except RuntimeError as error:
            self._break(str(error))
            return
        self._reduced = self.step + 1
        self._apply()
        self._cast_vote()
        self._seats.report_step(self.step, time.monotonic() - self._began_s)

    def _apply(self) -> None:
        self._optimizer.step()
        self.step += 1

    def _cast_vote(self) -> None:
        """Tells all ranks that this one has its gradients, and of which world it knows."""
        assert self._group is not None
        latest = self._seats.latest()
        heard = torch.tensor([0 if latest is None else latest.epoch])
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]
        try:
            self._vote = self._group.group.allreduce([heard], options), heard
        except RuntimeError as error:
            self._break(str(error))

    def _count_votes(self) -> int:
        """Returns the newest world that any rank knew of when the step counted."""
        if self._vote is None:
            return 0
        (work, heard), self._vote = self._vote, None
        work.wait()
        return int(heard)

    def _hear(self, seat: Seat) -> None:
        """Wakes this rank, from a thread, if it waits for one that is gone."""
        current, group = self._seat, self._group
        if current is None or group is None or seat.epoch <= current.epoch:
            return
        lost = set(current.members) - set(seat.members)
        if any(self._seats.is_gone(name) for name in lost):
            group.break_off()

    def _break(self, reason: str) -> None:
        assert self._seat is not None
        epoch, latest = self._seat.epoch, self._seats.latest()
        if latest is None or latest.epoch <= epoch:
            logger.info("world %d is broken: %s", epoch, reason)
            self._seats.report_broken(epoch, reason)
        self._leave_group()

    def _leave_group(self) -> None:
        self._vote = None
        if self._group is not None:
            self._group.close()
            self._group = None

    def _enter(self, epoch: int) -> bool:
        """Enters a newer world; returns whether this worker has a place in it."""
        seat = self._seats.wait(epoch, self._patience_s)
        if seat is None:
            message = f"no world after {epoch} came within {self._patience_s:g} s"
            raise DistributedError(message)
        self._seat = seat
        if seat.rank < 0:
            # One that stands by waits for a place; one that had its place has left.
            return not self._has_state
        if not self._all_come(seat):
            return True
        try:
            self._group = WorldGroup(
                self._factory,
                self._store,
                epoch=seat.epoch,
                rank=seat.rank,
                world_size=len(seat.members),
                timeout=self._timeout,
            )
            # What was heard while the group was made found none to break off.
            latest = self._seats.latest()
            if latest is not None:
                self._hear(latest)
            self._agree(seat)
        except RuntimeError as error:
            # Somebody was lost while the world formed: there will be another one.
            if isinstance(error, DistributedError):
                raise
            self._break(str(error))
        return True

    def _all_come(self, seat: Seat) -> bool:
        """Waits for all ranks of a world; returns whether it is still the newest then.

        Making a group cannot be broken off, so that it is begun only with all there.
        """
        keys = [f"world/{seat.epoch}/here/{rank}" for rank in range(len(seat.members))]
        self._store.set(keys[seat.rank], "1")
        end_s = time.monotonic() + self._timeout.total_seconds()
        while not self._store.check(keys):
            latest = self._seats.latest()
            if latest is not None and latest.epoch > seat.epoch:
                return False
            if time.monotonic() > end_s:
                self._break(f"not all ranks came within {self._timeout}")
                return False
            time.sleep(_POLL_S)
        return True

    def _agree(self, seat: Seat) -> None:
        """Brings all ranks of a world to the same step."""
        assert self._group is not None
        group = self._group.group
        mine = torch.tensor([self.step, self._reduced, not self._has_state])
        all_ = [torch.zeros_like(mine) for _ in seat.members]
        group.allgather([all_], [mine]).wait()
        rows = [row.tolist() for row in all_]
        if all(is_new for _, _, is_new in rows):
            self._begin_alike(seat)
            return
        progress = [
            Progress(step, reduced, bool(is_new), node)
            for (step, reduced, is_new), node in zip(rows, seat.nodes, strict=True)
        ]
        self._carry_out(resolve(progress), seat.rank)

    def _begin_alike(self, seat: Seat) -> None:
        """Gives the state of the first rank of the first world to those that differ."""
        assert self._group is not None
        group = self._group.group
        state = {**self._state, _STEP: self.step}
        mine = torch.tensor([state_digest(state)])
        digests = [torch.zeros_like(mine) for _ in seat.members]
        group.allgather([digests], [mine]).wait()
        for taker, digest in enumerate(digests):
            if torch.equal(digest, digests[0]):
                continue
            if seat.rank == 0:
                give_state(group, taker, state)
            elif seat.rank == taker:
                self._take(0)
        self._has_state = True

    def _take(self, source: int) -> None:
        """Receives the state of another rank."""
        assert self._group is not None
        into: dict[str, Any] = {**self._state, _STEP: 0}
        take_state(self._group.group, source, into)
        self.step = self._reduced = into[_STEP]
        self._has_state = True

    def _carry_out(self, resolution: Resolution, rank: int) -> None:
        assert self._group is not None
        group, actions = self._group.group, resolution.actions
        for taker, action in enumerate(actions):
            if action.do != Do.TAKE_GRADIENTS or rank not in {taker, action.source}:
                continue
            for buffer in self._reducer.buffers:
                if rank == taker:
                    group.recv([buffer], action.source, _GRADIENTS_TAG).wait()
                else:
                    group.send([buffer], taker, _GRADIENTS_TAG).wait()
        if actions[rank].do in {Do.TAKE_GRADIENTS, Do.APPLY}:
            self._reduced = resolution.step
            self._apply()
        for taker, action in enumerate(actions):
            if action.do != Do.TAKE_STATE:
                continue
            if rank == taker:
                self._take(action.source)
            elif rank == action.source:
                give_state(group, taker, {**self._state, _STEP: self.step})
