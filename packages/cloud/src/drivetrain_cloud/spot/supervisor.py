"""Carries out what is decided for a job on nodes that may be taken away."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_cloud.spot.actions import (
    Cancel,
    GiveUp,
    Leave,
    Pause,
    Release,
    Request,
    Resume,
    Save,
    Suspend,
    Train,
)
from drivetrain_cloud.spot.capacity import Capacity, JobPhase, Node, NodePhase, Notice
from drivetrain_cloud.spot.cost_observability import Usage, observe
from drivetrain_cloud.spot.decision import decide
from drivetrain_cloud.spot.job_control import JobView
from drivetrain_cloud.spot.measured_speed import SpeedWatch, watch_speed
from drivetrain_cloud.spot.worker_count import choose_count, first_wants, wants
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_cloud.spot.actions import Action
    from drivetrain_cloud.spot.config import SpotConfig
    from drivetrain_cloud.spot.job_control import JobControl
    from drivetrain_cloud.spot.pool import CapacityPool, PoolNode
    from drivetrain_cloud.spot.worker_count import CountConfig

logger = logging.getLogger(__name__)

_NUM_DONE = 1000
_MOST_FAILURES = 3
_NO_DEADLINE_S = 30.0
_LEAST_WAIT_S = 0.02


class Done(NamedTuple):
    """Something that was decided and carried out.

    Attributes:
        at_s: When.
        action: What.
    """

    at_s: float
    action: Action


class TimedSave(NamedTuple):
    """A checkpoint that was asked for and is durable.

    Attributes:
        asked_s: When it was asked for.
        durable_s: When it was found durable.
        step: What it holds.
    """

    asked_s: float
    durable_s: float
    step: int


class Supervisor:
    """Keeps a job training on what nodes there are; used from one thread.

    It keeps nothing that a new one could not find out: it may be ended and started again
    while the job goes on.

    Args:
        pool: Where nodes come from.
        job: The job that they train.
        config: What the job wants.
        count: What a node must be worth, if the number of nodes is to follow what they
            bring: from its least to its most, by the unit of `config`.
        save_s: How long a checkpoint takes, until one was measured.

    Attributes:
        capacity: What was found at the last look.
        view: Of the job, likewise.
        done: What was carried out, the oldest first.
        saves: Checkpoints that were asked for and are durable, the oldest first.
        usage: Who was there, and when.
        speed: How fast the job was, by number of nodes.
        num_samples: How many samples were trained on, as far as that is known.
        exit_code: Of the job that has ended.

    Raises:
        ProgramError: The number of nodes cannot follow what they bring.
    """

    def __init__(
        self,
        pool: CapacityPool,
        job: JobControl,
        config: SpotConfig,
        *,
        count: CountConfig | None = None,
        save_s: float = 5.0,
    ) -> None:
        self._pool = pool
        self._job = job
        self._count = count
        self._config = config if count is None else first_wants(config, count)
        self.capacity = Capacity(save_s=save_s)
        self.view = JobView()
        self.done: deque[Done] = deque(maxlen=_NUM_DONE)
        self.saves: deque[TimedSave] = deque(maxlen=_NUM_DONE)
        self.usage = Usage()
        self.speed = SpeedWatch(window_steps=20 if count is None else count.steps)
        self.num_samples = 0.0
        self.exit_code = 0
        self._has_looked = False
        self._leaving: set[str] = set()
        self._admitted: frozenset[str] | None = None
        self._request = ""
        self._order: Save | None = None
        self._asked_s = 0.0
        self._num_failures = 0

    # ---- one look ----

    def step(self, now_s: float | None = None) -> float:
        """Looks, decides, and carries out; returns when to look again at the latest.

        Args:
            now_s: The time, as `time.monotonic()` counts; now by default.

        Raises:
            DistributedError: The job does not answer.
            OSError: The pool does not.
        """
        now_s = time.monotonic() if now_s is None else now_s
        self._look(now_s)
        decision = decide(now_s, self.capacity, self._config)
        for action in decision.actions:
            self._carry_out(now_s, action)
            self.done.append(Done(now_s, action))
            logger.info("%s: %s", type(action).__name__, action.reason)
        self.usage = observe(now_s, self.usage, self.capacity)
        return decision.look_again_s

    def run(
        self,
        *,
        poll_s: float = 0.5,
        looked: Callable[[Supervisor], object] = lambda _: None,
    ) -> int:
        """Goes on until the job has ended, and returns its exit code.

        A job or a pool that does not answer is asked again; training does not need them.

        Args:
            poll_s: How often it is looked.
            looked: Called after each look.
        """
        told = ""
        while self.capacity.phase != JobPhase.ENDED:
            look_again_s = math.inf
            try:
                look_again_s = self.step()
                told = ""
            except (DistributedError, OSError) as error:
                if str(error) != told:
                    told = str(error)
                    logger.warning("nothing is decided for now: %s", told)
            looked(self)
            left_s = look_again_s - time.monotonic()
            time.sleep(min(poll_s, max(_LEAST_WAIT_S, left_s)))
        return self.exit_code

    def _look(self, now_s: float) -> None:
        view = self._job.look()
        # A job that has ended has no workers that would say how far they are.
        view = replace(view, step=max(view.step, self.view.step))
        self._measure(now_s, view)
        self.view = view
        listed = self._pool.nodes(now_s)
        if not self._has_looked:
            self._has_looked = True
            self._put(phase_since_s=now_s, changed_s=now_s)
        before = {node.name: node for node in self.capacity.nodes}
        self._leaving &= {node.name for node in listed}
        if self._admitted is None:
            self._take_over(now_s, view)
        nodes = tuple(
            self._node(now_s, one, before.get(one.name), view) for one in listed
        )
        offered = self._pool.offered(now_s)
        step_s = view.step_s or self.capacity.step_s
        self._put(nodes=nodes, offered=offered, step_s=step_s)
        self._see_save(view)
        if view.ended and self.capacity.phase != JobPhase.ENDED:
            self.exit_code = view.exit_code
            self._set_phase(now_s, JobPhase.ENDED)
            self._give_all_back()

    def _measure(self, now_s: float, view: JobView) -> None:
        """Counts samples, and finds what nodes bring."""
        # A master that was started again has to hear it first.
        self.num_samples = view.num_samples or self.num_samples
        self.speed = watch_speed(
            now_s,
            self.speed,
            workers=len(view.training),
            step=view.step,
            step_samples=view.step_samples,
        )
        # What is asked for has come, and was measured: perhaps it is too little or much.
        if self._count is None or len(view.training) != self._config.nodes:
            return
        choice = choose_count(now_s, self._config.nodes, self.speed.speeds, self._count)
        if choice.workers != self._config.nodes:
            logger.info("%d nodes are wanted: %s", choice.workers, choice.reason)
            self._config = wants(self._config, choice.workers)

    def _take_over(self, now_s: float, view: JobView) -> None:
        """Goes on where a supervisor before this one has ended, if there was one."""
        if view.admitted is None:
            self._admit((), "nodes train when there are enough")
            return
        self._admitted = view.admitted
        if view.admitted:
            self._set_phase(now_s, JobPhase.TRAINING)
            self._put(changed_s=now_s)

    def _node(
        self, now_s: float, one: PoolNode, before: Node | None, view: JobView
    ) -> Node:
        phase = NodePhase.READY
        if one.name in self._leaving:
            phase = NodePhase.LEAVING
        elif not one.is_running or one.name not in view.ready:
            phase = NodePhase.REQUESTED
        elif one.name in (self._admitted or ()):
            phase = NodePhase.TRAINING
        same = before is not None and before.phase == phase
        return Node(
            name=one.name,
            market=one.market,
            phase=phase,
            since_s=before.since_s if before is not None and same else now_s,
            notice=_notice(now_s, one, before, view),
            offer=one.offer,
        )

    def _see_save(self, view: JobView) -> None:
        """Sees what has become of the checkpoint that was asked for last."""
        if not self.capacity.is_saving or self._order is None:
            return
        result = view.saved
        if result is not None and result.request == self._request:
            self._end_save(result.step, result.failure)
        elif view.requested != self._request:
            # The master was started again, and has forgotten it.
            self._ask_to_save(self._order)

    def _end_save(self, step: int, failure: str) -> None:
        if not failure:
            took_s = time.monotonic() - self._asked_s
            save_s = max(took_s, 0.8 * self.capacity.save_s)
            self._put(is_saving=False, saved_s=self._asked_s, save_s=save_s)
            self.saves.append(TimedSave(self._asked_s, self._asked_s + took_s, step))
            self._num_failures, self._order = 0, None
            return
        logger.warning("the checkpoint has failed: %s", failure)
        self._num_failures += 1
        if self._num_failures < _MOST_FAILURES:
            self._put(is_saving=False)
        # Otherwise it counts as under way until there is no time for it any more.
        self._order = None

    # ---- carrying out ----

    def _carry_out(self, now_s: float, action: Action) -> None:
        match action:
            case Request():
                self._request_nodes(now_s, action)
            case Cancel():
                self._pool.cancel(action.node)
            case Release():
                self._pool.release(action.node)
            case Leave():
                self._let_leave(now_s, action)
            case Save():
                self._request, self._asked_s = secrets.token_hex(8), now_s
                self._ask_to_save(action)
                self._order = action
                self._put(is_saving=True)
            case Train():
                self._admit(action.nodes, action.reason)
                self._set_phase(now_s, JobPhase.TRAINING)
                self._put(changed_s=now_s)
            case Pause():
                self._admit((), action.reason)
                self._set_phase(now_s, JobPhase.WAITING)
                self._forget_save()
            case Suspend():
                self._admit((), action.reason)
                self._set_phase(now_s, JobPhase.SUSPENDED)
                self._forget_save()
                self._give_all_back()
            case Resume():
                self._set_phase(now_s, JobPhase.WAITING)
            case GiveUp():
                self._job.stop(action.reason, 1)
                self.exit_code = 1
                self._set_phase(now_s, JobPhase.ENDED)
                self._give_all_back()

    def _request_nodes(self, now_s: float, action: Request) -> None:
        names = self._pool.request(action.market, action.count)
        new = tuple(
            Node(
                name=name,
                market=action.market,
                phase=NodePhase.REQUESTED,
                since_s=now_s,
            )
            for name in names
        )
        self._put(nodes=(*self.capacity.nodes, *new))

    def _let_leave(self, now_s: float, action: Leave) -> None:
        within_s = action.deadline_s - now_s
        if not math.isfinite(within_s):
            within_s = _NO_DEADLINE_S
        self._job.leave(action.node, max(0.0, within_s), action.reason)
        self._leaving.add(action.node)
        self._put(changed_s=now_s)

    def _ask_to_save(self, action: Save) -> None:
        within_s = max(0.0, action.deadline_s - time.monotonic())
        self._job.save(self._request, within_s, action.reason)

    def _forget_save(self) -> None:
        self._order, self._num_failures = None, 0
        self._put(is_saving=False)

    def _admit(self, nodes: tuple[str, ...], reason: str) -> None:
        self._job.admit(nodes, reason)
        self._admitted = frozenset(nodes)

    def _give_all_back(self) -> None:
        for node in self.capacity.nodes:
            if node.phase == NodePhase.REQUESTED:
                self._pool.cancel(node.name)
            self._pool.release(node.name)

    def _set_phase(self, now_s: float, phase: JobPhase) -> None:
        if phase != self.capacity.phase:
            self._put(phase=phase, phase_since_s=now_s)

    def _put(self, **fields: object) -> None:
        self.capacity = replace(self.capacity, **fields)  # type: ignore[arg-type]


def _notice(
    now_s: float, one: PoolNode, before: Node | None, view: JobView
) -> Notice | None:
    """Returns that a node will be taken away, if its pool or its agent says so."""
    known = before.notice if before is not None else None
    heard = view.notices.get(one.name)
    deadline_s = math.inf if one.deadline_s is None else one.deadline_s
    if heard is not None:
        deadline_s = min(deadline_s, now_s + heard.remaining_s)
    if deadline_s < math.inf:
        heard_s = now_s if known is None else known.heard_s
        return Notice(heard_s=heard_s, deadline_s=deadline_s)
    # An agent that is gone has not taken back what it said.
    return known if one.name not in view.present else None
