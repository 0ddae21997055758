"""Replays a trace: the decisions that a supervisor would make, and what becomes of them."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from drivetrain_cloud.cost.progress import Progress
from drivetrain_cloud.spot import actions
from drivetrain_cloud.spot.capacity import (
    Capacity,
    JobPhase,
    Market,
    Node,
    NodePhase,
    Notice,
)
from drivetrain_cloud.spot.cost_observability import NodeUse
from drivetrain_cloud.spot.decision import decide
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_cloud.cost.job_profile import JobProfile
    from drivetrain_cloud.cost.strategies import Strategy
    from drivetrain_cloud.cost.trace import CapacityTrace
    from drivetrain_cloud.spot.actions import Action

_MOST_ROUNDS = 50


class Spent(StrEnum):
    """What the time of nodes that are paid for went to."""

    TRAINED = "steps that count"
    REPEATED = "steps made again"
    STALLED = "stalls"
    """Training stands still: nodes change, or a checkpoint is written."""
    WAITING = "waiting for nodes"
    STARTING = "starting"


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudTimes:
    """How quickly a cloud gives and takes.

    Args:
        start_s: From a grant until a node can train; it is paid for.
        notice_s: How long before it is gone a node hears of it.

    Raises:
        ProgramError: A number is out of its range.
    """

    start_s: float = 180.0
    notice_s: float = 120.0

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name in ("start_s", "notice_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                message = f"{name} must be a number of seconds from 0, got {value}"
                raise ProgramError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """What became of a job.

    Args:
        seconds: How long it lasted.
        samples: That count.
        uses: The nodes it had; times are seconds since it was submitted.
        node_s: What the time of these nodes went to.
        taken: How many nodes were taken away from it.
        worlds: How often other nodes began to train.
        is_done: Whether all of its samples are made.
        gave_up: Why it ended as failed; "" if it did not.
    """

    seconds: float
    samples: float
    uses: tuple[NodeUse, ...]
    node_s: Mapping[Spent, float]
    taken: int
    worlds: int
    is_done: bool
    gave_up: str = ""

    @property
    def waste(self) -> float:
        """Returns the share of the nodes' time that went to anything but training."""
        total_s = sum(self.node_s.values())
        return 1 - self.node_s[Spent.TRAINED] / total_s if total_s > 0 else 0.0


def usual_interval_s(
    trace: CapacityTrace, nodes: int, save_s: float, stall_s: float
) -> float:
    """Returns the time between checkpoints that wastes least, after Young (1974).

    With C the time that a checkpoint costs and M the time between two losses, it is
    sqrt(2 C M). Nodes are lost at the rate of the trace, and each loss is the job's.

    Args:
        trace: How often nodes are taken away.
        nodes: That the job has.
        save_s: How long a checkpoint takes; the least that is returned.
        stall_s: How long training stands still for it.
    """
    if not trace.reclaims:
        return math.inf
    mean = max(trace.mean_available(), 1.0)
    between_s = trace.end_s / trace.reclaims * mean / min(nodes, mean)
    return max(save_s, math.sqrt(2 * max(stall_s, 0.01) * between_s))


def replay(
    trace: CapacityTrace,
    profile: JobProfile,
    strategy: Strategy,
    *,
    cloud: CloudTimes | None = None,
    samples: float = math.inf,
    seed: int = 0,
) -> Replay:
    """Replays a trace with the decisions of the supervisor.

    When the trace falls by k of its n nodes, k of n are drawn; the job loses those of
    them that it has. It hears so `notice_s` before, and gets a successor as soon as the
    pool has one. Nodes on demand are always there.

    Args:
        trace: How many spot nodes there are.
        profile: Of the job.
        strategy: What it does about what happens.
        cloud: How quickly the cloud gives and takes.
        samples: After which the job is done; by default it ends with the trace.
        seed: Of the draws; the same gives the same.

    Example:
        >>> from drivetrain_cloud.cost import PROFILES, CapacityTrace, usual_strategies
        >>> trace = CapacityTrace(changes=((0.0, 4),), end_s=3600.0, source="nothing happens")
        >>> found = replay(trace, PROFILES["resnet50"], usual_strategies(4)[2])
        >>> found.worlds, found.taken, found.node_s[Spent.TRAINED]
        (1, 0, 13440.0)
    """
    run = _Run(trace, profile, strategy, cloud or CloudTimes(), samples, seed)
    return run.to_end()


class _Run:
    def __init__(
        self,
        trace: CapacityTrace,
        profile: JobProfile,
        strategy: Strategy,
        cloud: CloudTimes,
        samples: float,
        seed: int,
    ) -> None:
        self._trace, self._profile = trace, profile
        self._strategy, self._cloud = strategy, cloud
        self._config = strategy.config
        self._takes_more = self._config.most > self._config.nodes
        self._random = random.Random(f"{seed}:{trace.end_s}:{len(trace.changes)}")
        self._progress = Progress(
            interval_s=usual_interval_s(
                trace, self._config.nodes, profile.save_s, profile.stall_s
            ),
            stall_s=profile.stall_s,
            save_s=profile.save_s,
            target=samples * profile.samples_ratio,
        )
        self._now_s = 0.0
        self._nodes: dict[str, Node] = {}
        self._phase, self._phase_since_s, self._changed_s = JobPhase.WAITING, 0.0, 0.0
        self._paid: dict[str, float] = {}
        self._doomed: set[str] = set()
        self._holders: set[str] = set()
        self._stall_s: float | None = None
        self._num_names = self._worlds = self._taken = 0
        self._gave_up = ""
        self._uses: list[NodeUse] = []
        self._starting_s = self._waiting_s = 0.0
        self._free = trace.changes[0][1]
        self._events: list[tuple[float, int, str, str, int]] = []
        self._num_events = 0
        self._plan_trace()

    def _plan_trace(self) -> None:
        """Puts down when the pool grows, and when it is said that it shrinks."""
        changes = self._trace.changes
        for (_, before), (time_s, after) in itertools.pairwise(changes):
            if after > before:
                self._push(time_s, "grow", count=after - before)
            else:
                heard_s = max(0.0, time_s - self._cloud.notice_s)
                self._push(heard_s, "shrink", str(time_s), before - after)

    def _push(self, time_s: float, kind: str, name: str = "", count: int = 0) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (time_s, self._num_events, kind, name, count))

    def to_end(self) -> Replay:
        look_s = 0.0
        while True:
            next_s = self._events[0][0] if self._events else math.inf
            to_s = min(next_s, max(look_s, self._now_s), self._trace.end_s)
            self._advance(to_s)
            if self._progress.done_s is not None or to_s >= self._trace.end_s:
                return self._result()
            is_seen = to_s >= look_s
            while self._events and self._events[0][0] <= to_s:
                _, _, kind, name, count = heapq.heappop(self._events)
                is_seen |= self._happen(kind, name, count)
            # What the decisions cannot see does not change them.
            if is_seen:
                look_s = self._decide()
            else:
                self._grant()
            if self._phase == JobPhase.ENDED:
                return self._result()

    def _advance(self, to_s: float) -> None:
        self._progress.advance(to_s)
        done_s = self._progress.done_s
        to_s = to_s if done_s is None else done_s
        past_s = to_s - self._now_s
        for name in self._paid:
            phase = self._nodes[name].phase
            if phase == NodePhase.REQUESTED:
                self._starting_s += past_s
            elif phase != NodePhase.TRAINING:
                self._waiting_s += past_s
        self._now_s = to_s

    # ---- what happens ----

    def _happen(self, kind: str, name: str, count: int) -> bool:
        """Lets something happen; returns whether decisions can see it."""
        if kind == "grow":
            self._free += count
            return self._takes_more
        if kind == "shrink":
            return self._shrink(float(name), count) or self._takes_more
        if kind == "saved":
            return True
        node = self._nodes.get(name)
        if node is None:
            return False
        if kind == "ready":
            self._put(node, NodePhase.READY)
        else:
            self._lose(node)
        return True

    def _shrink(self, deadline_s: float, count: int) -> bool:
        """Draws who is hit among all nodes of the pool; returns whether ours are."""
        ours = [
            name
            for name in self._paid
            if name not in self._doomed and self._nodes[name].market == Market.SPOT
        ]
        places = max(self._free, len(ours))
        hit = self._random.sample(range(places), min(count, places))
        self._free -= count
        lost = sorted(ours[place] for place in hit if place < len(ours))
        for name in lost:
            node = self._nodes[name]
            if node.phase == NodePhase.REQUESTED or deadline_s <= self._now_s:
                self._lose(node)
                continue
            self._doomed.add(name)
            self._push(deadline_s, "gone", name)
            if self._strategy.heeds_notices:
                notice = Notice(heard_s=self._now_s, deadline_s=deadline_s)
                self._nodes[name] = replace(node, notice=notice)
        return bool(lost)

    def _lose(self, node: Node) -> None:
        self._taken += 1
        self._remove(node.name, was_taken=True)
        if node.phase != NodePhase.TRAINING:
            return
        self._progress.lose_step()
        if not self._strategy.keeps_state:
            self._holders.clear()
        self._change_world(self._profile.lose_s)

    # ---- what is done ----

    def _decide(self) -> float:
        for _ in range(_MOST_ROUNDS):
            found = decide(self._now_s, self._capacity(), self._config)
            for action in found.actions:
                self._do(action)
            if not found.actions:
                break
        else:
            message = f"decisions do not come to rest at {self._now_s} s: {found}"
            raise AssertionError(message)
        self._grant()
        self._settle_world()
        return found.look_again_s

    def _capacity(self) -> Capacity:
        training = sum(
            node.phase == NodePhase.TRAINING for node in self._nodes.values()
        )
        asked = self._config.nodes
        offered = 0
        if self._takes_more:
            spot = [n for n in self._nodes.values() if n.market == Market.SPOT]
            offered = max(0, self._free - sum(n.notice is None for n in spot))
        return Capacity(
            nodes=tuple(self._nodes.values()),
            phase=self._phase,
            phase_since_s=self._phase_since_s,
            changed_s=self._changed_s,
            offered=offered,
            is_saving=self._progress.is_saving,
            saved_s=self._progress.saved_s,
            step_s=self._profile.step_s(training or asked, asked),
            save_s=self._profile.save_s,
        )

    def _do(self, action: Action) -> None:
        match action:
            case actions.Request(market=market, count=count):
                for _ in range(count):
                    self._num_names += 1
                    name = f"n{self._num_names}"
                    self._nodes[name] = Node(
                        name=name,
                        market=market,
                        phase=NodePhase.REQUESTED,
                        since_s=self._now_s,
                    )
            case actions.Cancel(node=name) | actions.Release(node=name):
                self._remove(name)
            case actions.Leave(node=name):
                is_taken = name in self._doomed
                self._taken += is_taken
                self._remove(name, was_taken=is_taken)
                self._change_world(self._profile.resize_s)
            case actions.Save():
                self._push(self._progress.save(self._now_s), "saved")
            case actions.Train(nodes=names):
                for node in list(self._nodes.values()):
                    is_in = node.name in names
                    if is_in and node.phase != NodePhase.TRAINING:
                        self._put(node, NodePhase.TRAINING)
                    elif not is_in and node.phase == NodePhase.TRAINING:
                        self._put(node, NodePhase.READY)
                self._change_world(self._profile.resize_s)
                self._set_phase(JobPhase.TRAINING)
            case actions.Pause():
                self._stop(JobPhase.WAITING)
            case actions.Suspend():
                self._stop(JobPhase.SUSPENDED)
                for name in list(self._nodes):
                    self._remove(name)
            case actions.Resume():
                self._set_phase(JobPhase.WAITING)
            case actions.GiveUp(reason=reason):
                self._gave_up = reason
                self._stop(JobPhase.ENDED)

    def _stop(self, phase: JobPhase) -> None:
        for node in list(self._nodes.values()):
            if node.phase == NodePhase.TRAINING:
                self._put(node, NodePhase.READY)
        self._progress.end_world()
        self._set_phase(phase)
        self._stall_s = None

    def _change_world(self, stall_s: float) -> None:
        self._stall_s = max(stall_s, self._stall_s or 0.0)
        self._changed_s = self._now_s

    def _settle_world(self) -> None:
        """Lets those train who shall, once all has been decided."""
        if self._phase != JobPhase.TRAINING or self._stall_s is None:
            return
        profile, asked = self._profile, self._config.nodes
        names = {n.name for n in self._nodes.values() if n.phase == NodePhase.TRAINING}
        stall_s = self._stall_s
        if not names:
            # Those that left took the state with them; others have not begun.
            self._progress.end_world()
            self._holders.clear()
            return
        if not self._holders & names:
            self._progress.roll_back()
            stall_s = max(stall_s, profile.restore_s)
        self._holders, self._stall_s = names, None
        self._worlds += 1
        self._progress.begin_world(
            self._now_s,
            nodes=len(names),
            samples_per_s=profile.samples_per_s(len(names), asked),
            step_s=profile.step_s(len(names), asked),
            stall_s=stall_s,
        )

    def _grant(self) -> None:
        """Gives what was asked for as far as there is something."""
        have = sum(
            name not in self._doomed and self._nodes[name].market == Market.SPOT
            for name in self._paid
        )
        for node in self._nodes.values():
            if node.phase != NodePhase.REQUESTED or node.name in self._paid:
                continue
            if node.market == Market.SPOT:
                if have >= self._free:
                    continue
                have += 1
            self._paid[node.name] = self._now_s
            self._push(self._now_s + self._cloud.start_s, "ready", node.name)

    # ---- nodes ----

    def _put(self, node: Node, phase: NodePhase) -> None:
        self._nodes[node.name] = replace(node, phase=phase, since_s=self._now_s)

    def _set_phase(self, phase: JobPhase) -> None:
        if phase != self._phase:
            self._phase, self._phase_since_s = phase, self._now_s

    def _remove(self, name: str, *, was_taken: bool = False) -> None:
        node = self._nodes.pop(name)
        self._holders.discard(name)
        self._doomed.discard(name)
        if name in self._paid:
            self._uses.append(
                NodeUse(
                    node=name,
                    market=node.market,
                    offer=node.offer,
                    begin_s=self._paid.pop(name),
                    end_s=self._now_s,
                    was_taken=was_taken,
                )
            )

    def _result(self) -> Replay:
        if not self._holders and self._progress.done_s is None:
            self._progress.roll_back()
        for name in list(self._paid):
            self._remove(name)
        progress = self._progress
        return Replay(
            seconds=self._now_s,
            samples=progress.samples / self._profile.samples_ratio,
            uses=tuple(self._uses),
            node_s={
                Spent.TRAINED: progress.trained_s,
                Spent.REPEATED: progress.repeated_s,
                Spent.STALLED: progress.stalled_s,
                Spent.WAITING: self._waiting_s,
                Spent.STARTING: self._starting_s,
            },
            taken=self._taken,
            worlds=self._worlds,
            is_done=progress.done_s is not None,
            gave_up=self._gave_up,
        )
