"""Elastic training loop: the same steps on whatever ranks there are; survivors continue."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

import torch

from drivetrain_core import DistributedError
from drivetrain_elastic._data._schedule import Block, Part
from drivetrain_elastic._membership._connection import connect
from drivetrain_elastic._membership._single_process import SingleProcessMembership
from drivetrain_elastic._membership._world import (
    World,
    call_roll,
    end_together,
    is_finished,
    tell_finished,
)
from drivetrain_elastic._membership._world_group import RankLostError, with_others
from drivetrain_elastic._observability._step_meter import StepMeter
from drivetrain_elastic._training._agreement import agree
from drivetrain_elastic._training._checkpoints import Checkpoints
from drivetrain_elastic._training._comparison import is_compared
from drivetrain_elastic._training._gc_pause import GcPause
from drivetrain_elastic._training._model_copy import ModelCopy, require_in_copy
from drivetrain_elastic._training._refusals import refuse
from drivetrain_elastic._training._script_updates import ScriptUpdates
from drivetrain_elastic._training._step import Step
from drivetrain_elastic._training._training_state import Training

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor
    from torch.distributed import Work

    from drivetrain_core import services
    from drivetrain_core.services import ProcessGroupFactory
    from drivetrain_elastic._data._schedule import Schedule
    from drivetrain_elastic._membership._connection import Connection
    from drivetrain_elastic._membership._rank_assignment import RankAssignment
    from drivetrain_elastic._training._batch_scaling import BatchScaling

logger = logging.getLogger(__name__)

_TIMEOUT = timedelta(seconds=60)
# In a row; what breaks so many is not that ranks are lost.
_MOST_BROKEN, _LONGEST_WAIT_S = 30, 5.0


class ElasticLoop:
    """Runs the steps of a training on all ranks of a world, and of the next one.

    When a rank is lost, the step in flight is finished or repeated, and the survivors
    continue with the same global batches; a joining rank receives the state from another
    one. Under `drivetrain-elastic run` the agent assigns the ranks; a script that is
    started by itself is a world of one.

    After the loop over its parts, and until its end, a step has the sums over all ranks as
    the parameters' gradients: there they are clipped or logged, or in a hook of the
    optimizer (`register_step_pre_hook`). Between two steps parameters have none. The loop
    steps the optimizer at the end of a step, unless the script does so in every step, by
    `optimizer.step()` or by a `GradScaler`.

    Code around `with step:` runs again after a step that was lost. What it has done to
    `state`, to parameters and to the options of optimizers is put back before, and so are
    buffers; `step` of the loop tells which steps count.

    A loop that is left may be entered again, and goes on with the next step. Where the
    scripts of all ranks leave it after the same step, and end well, the training has ended.
    A job has one loop.

    Args:
        model: On this rank. Where several ranks hold a copy together, it is sharded among
            them, by FSDP2 for one, over the process group of the copy, which
            `init_process_group` makes under `--workers-per-copy`. Over a mesh of several
            axes it is `accelerate` that lays it, and says which ranks read the same.
        optimizer: Of its parameters. Of a list all take a step at the end of a step.
        schedule: Which samples each step trains on.
        num_steps: How many steps there are.
        num_epochs: In their place, how often the data is read.
        scaling: How the learning rate follows the batch, for schedules whose batch follows
            the ranks.
        state: What else belongs to the state, by name, such as a schedule of learning
            rates: what has a `state_dict`, a `torch.Generator`, or plain data. It has all
            of its keys before the loop is made.
        num_micro_batches: How many passes a rank makes a step, at most.
        checkpointer: Saves the state, from the first copy of the model, and restores it
            when a training begins that no rank has the state of.
        save_every: After how many steps; 0 for never.
        timeout: How long ranks wait for each other.
        patience_s: How long to wait for a world.
        factory: Makes process groups; by default the one that is installed.
        connection: To what assigns the ranks; by default that of the environment.

    Attributes:
        step: The last step that counts.

    Raises:
        DistributedError: The agent does not answer, or no world came in time.

    Example:
        >>> from drivetrain_elastic import ElasticLoop, Schedule
        >>> model = torch.nn.Linear(2, 1)
        >>> data = torch.rand(8, 2)
        >>> loop = ElasticLoop(
        ...     model,
        ...     torch.optim.SGD(model.parameters(), lr=0.1),
        ...     schedule=Schedule(num_samples=8, global_batch=4),
        ...     num_steps=3,
        ... )
        >>> for step in loop:
        ...     with step:
        ...         for part in step.parts():
        ...             loss = model(data[part.indices]).square().mean()
        ...             (loss * part.weight).backward()
        >>> loop.step
        3
    """

    _has_connected: ClassVar[bool] = False

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        schedule: Schedule,
        num_steps: int | None = None,
        num_epochs: int | None = None,
        scaling: BatchScaling | None = None,
        state: MutableMapping[str, object] | None = None,
        num_micro_batches: int = 1,
        checkpointer: services.Checkpointer | None = None,
        save_every: int = 0,
        timeout: timedelta = _TIMEOUT,
        patience_s: float = 3600.0,
        factory: ProcessGroupFactory | None = None,
        connection: Connection | None = None,
    ) -> None:
        if (num_steps is None) == (num_epochs is None):
            refuse("lengths", num_steps=num_steps, num_epochs=num_epochs)
        if save_every and checkpointer is None:
            refuse("saver", save_every=save_every)
        self._schedule = schedule
        self._num_steps = num_steps
        self._num_epochs = num_epochs
        # Two of the environment's job would take each other's place.
        self._is_of_job = connection is None
        if self._is_of_job and ElasticLoop._has_connected:
            refuse("second_loop")
        self._membership, self._store, make = connection or connect()
        # Then no rank joins.
        self._is_alone = isinstance(self._membership, SingleProcessMembership)
        if self._is_of_job:
            ElasticLoop._has_connected = not self._is_alone
        self._pid = os.getpid()
        self._factory = factory or make()
        self._timeout = timeout
        self._num_micro_batches = num_micro_batches
        self._patience_s = patience_s
        self._copy = ModelCopy(model)
        others = {} if state is None else state
        self._training = Training(model, optimizer, others, schedule, scaling)
        self._checkpoints = Checkpoints(
            checkpointer, save_every, self._membership, self._training
        )
        self._block = Block(0, 0, 0)
        self._world: World | None = None
        self._epoch = 0
        self._num_broken = 0
        # Of the step in hand: whether gradients are sums, and are applied.
        self._is_summed = self._is_updated = False
        self._has_begun = self._is_closed = self._has_failed = False
        self._updates = ScriptUpdates(
            self._training.optimizers, self._update, is_alone=self._is_alone
        )
        self._rank = -1
        self._vote: Work | None = None
        # Whether a rank knew of a newer world as the last step was made.
        self._has_news = False
        self._began_s = 0.0
        self._num_votes = 0
        self._meter = StepMeter(
            self._training.reducer.device,
            count=self._num_collectives,
            record=self._membership.flight_record(),
        )
        self._gc_pause = GcPause()
        self._unsubscribe = self._membership.subscribe(self._hear)

    @property
    def step(self) -> int:
        """The last step that counts."""
        return self._training.step

    @property
    def rank(self) -> int:
        """Of this worker, in the last world that it was in; -1 before the first."""
        return self._rank

    @property
    def is_done(self) -> bool:
        """Whether all steps count."""
        if self._num_steps is not None:
            return self._training.step >= self._num_steps
        assert self._num_epochs is not None
        return self._training.position.epoch >= self._num_epochs

    def section(self, name: str) -> AbstractContextManager[None]:
        """Counts what is done within, such as loading data, under a name of its own.

        The name is what is told of a rank that is slower there than the others are. What
        is in no section is called "compute" within a step, and "outside" between steps.

        Args:
            name: Of the section.
        """
        return self._meter.section(name)

    def _num_collectives(self) -> int:
        """Returns how many this rank has entered so far."""
        return self._training.reducer.num_entered + self._num_votes

    def __iter__(self) -> Iterator[Step]:
        """Yields steps until the last one counts, or this worker has no place any more.

        Raises:
            ProgramError: The loop has ended with an error before.
        """
        if self._has_failed:
            refuse("ended")
        if self._is_closed:
            return
        if not self._has_begun:
            if self._is_of_job and not self._is_alone:
                atexit.register(self._end_together)
            self._has_begun = True
            self._checkpoints.restore()
            self._membership.report_ready()
        try:
            while self._prepare():
                assert self._world is not None
                step = Step(self, self.step + 1, self._world.assignment)
                yield step
                if not step.has_begun:
                    refuse("skipped", number=step.number)
            self._membership.report_phase("ending")
            self._checkpoints.flush()
            self._membership.report_end(is_finished=self.is_done)
        except GeneratorExit:
            self._gc_pause.end()
            return
        except BaseException:
            self._has_failed = True
            ElasticLoop._has_connected = False
            self._close()
            raise
        self._close()

    def _end_together(self) -> None:
        """Ends the training, at the end of a script that has left the loop, if all do so.

        Where others go on, or this script has failed, its agent finds that it was left.
        """
        has_failed = getattr(sys, "last_value", None) is not None
        if has_failed or self._world is None or os.getpid() != self._pid:
            return
        self._membership.report_phase("ending")
        assignment = self._world.assignment
        if end_together(assignment, self._store, self.step, self._is_over):
            self._checkpoints.flush()
            self._membership.report_end(is_finished=True)

    def _close(self) -> None:
        self._is_closed = True
        atexit.unregister(self._end_together)
        self._unsubscribe()
        self._training.reducer.close()
        self._leave_world()
        self._gc_pause.end()

    # ---- one step ----

    def _prepare(self) -> bool:
        """Comes to the start of the next step; returns whether there is one here."""
        self._training.resume()
        while True:
            if self._world is None:
                if not self._enter():
                    return False
                continue
            if self.is_done or self._has_news:
                self._membership.report_phase("waiting")
                # This rank goes, and sees to it first that nobody lacks its state.
                try:
                    self._count_vote()
                except RuntimeError as error:
                    if self.is_done and is_finished(self._store):
                        return False
                    self._break(str(error))
                    continue
            if self._has_news:
                self._leave_world()
                self._checkpoints.save_last()
                continue
            if not self.is_done:
                return True
            # All have the last step, though some may not know it yet: a rank whose vote
            # fails, since this one goes, finds it here.
            tell_finished(self._store, self.step)
            return False

    def _begin(self) -> None:
        self._membership.report_phase("computing")
        self._began_s = time.monotonic()
        self._meter.begin_step(self.step + 1)
        self._is_summed = self._is_updated = False
        if not self._is_alone:
            self._training.keep()
        self._updates.begin()

    def _parts(self) -> Iterator[Part]:
        assert self._world is not None
        assignment, reducer = self._world.assignment, self._training.reducer
        if not self._is_alone:
            self._training.require_joinable()
        self._block = self._training.begin(
            assignment.num_copies, self._is_over, self._wants_save
        )
        size, place = self._copy.part(assignment)
        parts = self._schedule.parts(
            self._block,
            num_shares=assignment.num_copies * size,
            share=assignment.copy * size + place,
            num_micro_batches=self._num_micro_batches,
            even=size > 1,
        )
        if assignment.num_copies * size * self._num_micro_batches > 1:
            self._training.require_linear_hooks()
        for at, (indices, weight) in enumerate(parts):
            reducer.part = at
            if at == len(parts) - 1:
                reducer.send_with(self._world.peers)
            self._meter.add_samples(len(indices))
            # Within a copy the mean of gradients is taken, where the sum is wanted.
            yield Part(indices, weight * size)
        self._membership.report_phase("waiting")
        require_in_copy(self._world, self._sum(), reducer.device)
        # From here on the step counts: what the script does with sums is done once.
        require_in_copy(self._world, self._tell_news(self._world), reducer.device)
        self._membership.report_phase("computing")
        reducer.show()
        self._is_summed = True

    def _sum(self) -> RankLostError | None:
        """Sums the gradients over all ranks; returns why that cannot be."""
        assert self._world is not None
        self._training.require_covered(has_peers=self._world.peers.size() > 1)
        reducer = self._training.reducer
        try:
            with self._meter.waiting("all-reduce"):
                reducer.finish(self._world.peers)
        except RankLostError as error:
            return error
        if self._world.is_broken and reducer.ends_early:
            # On a GPU that ends what is under way as if it were done.
            return RankLostError(f"world {self._epoch} was broken off")
        return None

    def _update(
        self, scale: Tensor | None = None, is_overflow: bool | None = None
    ) -> None:
        """Makes the update of a step, which counts then.

        Args:
            scale: What gradients are to be divided by; None for nothing.
            is_overflow: Whether a `GradScaler` leaves it out; None without one.

        Raises:
            ProgramError: Gradients are not sums yet, or the scaler is not in the state.
        """
        training, world = self._training, self._world
        if world is None or not self._is_summed:
            refuse("early_update")
        if is_overflow is not None and not self._is_alone:
            training.require_joinable(has_scaler=True)
        self._updates.end()
        self._meter.wait()
        training.settle(scale, is_left_out=bool(is_overflow))
        self._meter.apply()
        training.apply()
        self._is_updated = True

    def _finish(self) -> None:
        """Applies, unless the script has done so, and votes before ranks go."""
        self._membership.report_phase("waiting")
        self._updates.close_step()
        if not self._is_updated:
            self._update()
        assert self._world is not None
        self._updates.end()
        self._num_broken = 0
        self._training.reducer.hide()
        is_saved = self._checkpoints.is_due(self._world.assignment)
        is_last = self.is_done or self._has_news
        if is_last or is_saved or is_compared(self.step):
            self._compare(self._world)
        if is_saved:
            self._meter.save()
            self._checkpoints.save()
        if is_last and self._world is not None:
            self._cast_vote()
        if self._world is not None:
            self._gc_pause.end()
            self._meter.end_step(self._training.num_read)
            self._membership.report_times(self._meter.times())
        self._membership.report_step(self.step, time.monotonic() - self._began_s)
        # What the script does there is its own affair: it may evaluate, or save.
        self._membership.report_phase("between steps")

    def _tell_news(self, world: World) -> RankLostError | None:
        """Lets all ranks know whether one knows of a newer world.

        That all ranks get the same answer is how they leave a world after the same step.

        Returns:
            Why it cannot be.
        """
        if world.assignment.unit == 1:
            reducer = self._training.reducer
            self._has_news = reducer.has_news
            self._checkpoints.requested.is_agreed = reducer.has_wish
            return None
        # Other parts of the model may not have theirs: the vote comes before the update.
        news = torch.tensor([int(self._is_over()), int(self._wants_save())])
        try:
            with self._meter.waiting("vote"), with_others():
                world.everyone.allreduce([news]).wait()
        except RankLostError as error:
            return error
        self._has_news, self._checkpoints.requested.is_agreed = (news > 0).tolist()
        return None

    def _compare(self, world: World) -> None:
        """Finds out whether all ranks have the same parameters."""
        if world.peers.size() > 1:
            self._num_votes += 1
            try:
                self._training.compare(world.peers)
            except RankLostError as error:
                self._break(str(error))

    def _cast_vote(self) -> None:
        """Tells all ranks that this one has made its update."""
        assert self._world is not None
        if len(self._world.assignment.members) == 1:
            return
        self._num_votes += 1
        try:
            self._vote = self._world.everyone.allreduce([torch.zeros(1)])
        except RuntimeError as error:
            self._break(str(error))

    def _count_vote(self) -> None:
        """Waits until all ranks have made the update of the last step."""
        vote, self._vote = self._vote, None
        if vote is not None:
            with with_others():
                vote.wait()

    # ---- worlds ----

    def _hear(self, assignment: RankAssignment) -> None:
        """Wakes this rank, from a thread, if it waits for one that is gone."""
        world = self._world
        if world is not None and assignment.broken_epoch >= world.assignment.epoch:
            world.abort()

    def _break(self, reason: str) -> None:
        self._updates.end()
        self._num_broken += 1
        if self._num_broken > _MOST_BROKEN:
            message = (
                f"{self._num_broken} worlds in a row broke before step {self.step + 1} "
                f"counted, the last one with: {reason}"
            )
            raise DistributedError(message)
        latest = self._membership.latest()
        if latest is None or latest.epoch <= self._epoch:
            logger.info("world %d is broken: %s", self._epoch, reason)
            self._membership.report_broken(self._epoch, reason)
        self._leave_world()
        self._training.lose()

    def _leave_world(self) -> None:
        self._vote, self._has_news = None, False
        if self._world is not None:
            # Until the first step of the next one.
            self._gc_pause.begin()
            self._meter.leave_world()
            self._world.abort()
            self._training.reducer.abandon()
            self._world.close()
            self._world = None

    def _enter(self) -> bool:
        """Enters a newer world; returns whether this worker goes on."""
        self._membership.report_phase("waiting for a world")
        assignment = self._membership.wait(self._epoch, self._patience_s)
        if assignment is None or assignment.rank < 0:
            if self._membership.is_leaving():
                return False
            if assignment is None:
                message = (
                    f"no world after {self._epoch} came within {self._patience_s:g} s"
                )
                raise DistributedError(message)
            self._epoch = assignment.epoch
            return True
        self._epoch, self._rank = assignment.epoch, assignment.rank
        self._membership.report_phase("entering a world")
        self._meter.find_world()
        try:
            if not call_roll(
                assignment,
                self._store,
                patience_s=self._patience_s,
                is_over=self._is_over,
            ):
                return not is_finished(self._store)
            with with_others():
                self._world = World(
                    assignment, self._factory, self._store, self._timeout
                )
            # What was heard while the groups were made found none to abort.
            latest = self._membership.latest()
            if latest is not None:
                self._hear(latest)
            done = agree(
                self._training, self._world, begin=self._checkpoints.begin_anew
            )
            logger.info(
                "rank %d of %d in world %d, step %d: %s",
                *(
                    assignment.rank,
                    len(assignment.members),
                    assignment.epoch,
                    self.step,
                    done,
                ),
            )
        except RankLostError as error:
            # Somebody was lost while the world formed: there will be another one.
            self._wait_before_the_next()
            self._break(str(error))
            return True
        self._meter.enter_world(assignment.epoch, self.step, self._training.num_read)
        return True

    def _wait_before_the_next(self) -> None:
        """Gives those who form worlds again and again more and more time."""
        wait_s = min(_LONGEST_WAIT_S, 0.01 * 2**self._num_broken)
        if self._num_broken > 1:
            logger.warning("%d worlds in a row broke as they formed", self._num_broken)
            time.sleep(wait_s)

    def _wants_save(self) -> bool:
        """Whether this rank is to tell all others that a checkpoint is wanted now."""
        assert self._world is not None
        return self._world.assignment.rank == 0 and self._checkpoints.requested.is_due()

    def _is_over(self) -> bool:
        latest = self._membership.latest()
        return latest is not None and latest.epoch > self._epoch
