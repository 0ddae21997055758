"""Fault manager: which nodes are excluded, and what failed, was slow or fell silent.

It takes what agents say and returns what is to be done, which `NodeManager` then does.
How many failures lead to that is a table of `drivetrain_health.failures`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_elastic._master._failure_history import FailureHistory, Judged
from drivetrain_elastic._master._progress_monitor import ProgressMonitor
from drivetrain_elastic._master._time_accounting import TimeAccounting
from drivetrain_elastic._observability._sections import OUTSIDE
from drivetrain_elastic.decisions.check_votes import convicted
from drivetrain_health.failures import Action, Diagnosis, FailureClass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from drivetrain_elastic.decisions.membership import MembershipState, World
    from drivetrain_elastic.journal import Record
    from drivetrain_elastic.protocol import messages as pb

_SOON_S = 1.0
# What may be the node's fault, or may not.
_SUSPICIOUS = frozenset(
    {FailureClass.CRASH, FailureClass.STRAGGLER, FailureClass.UNKNOWN}
)
_CHECK_AGAIN_S = 600.0
_TIMES_LOST = 3
# How long a worker is slow before its node is excluded.
_SLOW_S = 30.0


class StopJob(NamedTuple):
    """The job is to end.

    Attributes:
        reason: Why, with the traceback of the program's error.
    """

    reason: str


class Exclude(NamedTuple):
    """A node is to be excluded, if the job can go on, or cannot go on with it.

    Attributes:
        node: Which one.
        reason: Why.
        is_broken: Whether its hardware is: then it goes even if nobody takes its place.
    """

    node: str
    reason: str
    is_broken: bool


class Check(NamedTuple):
    """A node is to be checked.

    Attributes:
        node: Which one.
        reason: Why.
    """

    node: str
    reason: str


class ShowStacks(NamedTuple):
    """All workers are to write down what they are doing.

    Attributes:
        reason: Why.
    """

    reason: str


_Order = StopJob | Exclude | Check | ShowStacks


class Look(NamedTuple):
    """What `FaultManager.look` has found.

    Attributes:
        orders: What is to be done.
        wait_s: After how many seconds to look again.
    """

    orders: list[_Order]
    wait_s: float


class FaultManager:
    """Responds to what goes wrong; used from one event loop.

    Args:
        records: Takes what is to be written.
        note: Takes an event: its kind, its subject and the reason.
        late_s: After what silence a node is told to be late.
    """

    def __init__(
        self,
        records: list[Record],
        note: Callable[[str, str, str], None],
        *,
        late_s: float,
    ) -> None:
        self._note = note
        self._late_s = late_s
        self._late: set[str] = set()
        self._node_of: dict[str, str] = {}
        # Workers that are slow, with when that was found, and what follows if they stay so.
        self._slow: dict[str, tuple[float, Exclude]] = {}
        self._epoch = 0
        self._checked_s: dict[str, float] = {}
        self._votes: dict[str, dict[str, str]] = {}
        self.failures = FailureHistory(records)
        self.progress = ProgressMonitor()
        self.time = TimeAccounting(records, self._cause_of)

    def _cause_of(self, worker: str) -> str:
        found = self.failures.of(worker)
        return "" if found is None else f"{found.failure_class}, {found.cause}"

    # ---- the journal ----

    def replay(self, record: Record) -> bool:
        """Takes a record of the journal; returns whether it was one of these."""
        return self.failures.replay(record) or self.time.replay(record)

    def dump(self) -> list[Record]:
        """Returns records that take the place of all that were written."""
        return [*self.failures.dump(), *self.time.dump()]

    def begin(self, state: MembershipState) -> None:
        """Goes on with the world that was replayed."""
        if state.world is not None:
            self._compare(state.world, state)

    # ---- what agents say ----

    def take_progress(self, workers: Sequence[pb.WorkerProgress]) -> None:
        """Takes the heartbeat of a node."""
        self.time.take(workers)
        windows = self.progress.take(workers)
        if not windows:
            return
        new, over = self.progress.news()
        for one in new:
            self._note("straggler", one.worker, one.reason)
            node = self._node_of.get(one.worker, "")
            if one.section == OUTSIDE:
                # What a script does between steps, such as logging on one rank, is its own.
                node = ""
            self.failures.add(
                Diagnosis(
                    FailureClass.STRAGGLER,
                    f"slow-{one.section}",
                    node,
                    one.reason,
                    one.worker,
                )
            )
        for one in over:
            why = f"is no longer slow in {one.section!r}"
            self._note("straggler-over", one.worker, why)
        for num_steps, window in windows:
            lost_s = self.progress.lost_s(num_steps, window)
            self.time.slow_down(self._epoch, lost_s)

    def take_alert(self, node: str, alert: pb.Alert) -> None:
        """Takes what a node is alarmed about."""
        kind = "alert-over" if alert.is_over else "alert"
        self._note(kind, node, f"{alert.kind}: {alert.reason}")
        if alert.HasField("failure"):
            self.failures.take(node, node, alert.failure)

    def lose_workers(self, names: Sequence[str], node: str, why: str) -> None:
        """Notes that workers are gone with their node, or with its agent."""
        self._late.discard(node)
        for worker in names:
            if worker in self._node_of and self.failures.of(worker) is None:
                found = Diagnosis(FailureClass.NODE_LOST, "silent", node, why, worker)
                self.failures.add(found)
                return

    # ---- worlds ----

    def enter(self, world: World, state: MembershipState) -> None:
        """Notes a new world, before it becomes the current one."""
        before = () if state.world is None else state.world.members
        gone = [name for name in before if name not in world.members]
        dead = [name for name in gone if name not in state.workers]
        if dead:
            cause = "lost"
        elif gone:
            cause = "leave"
        elif not before:
            cause = "start"
        elif state.broken_s is not None:
            cause = "collectives failed"
        else:
            cause = "join"
        self.time.enter(world.epoch, world.members, before, cause, gone)
        self._compare(world, state)

    def _compare(self, world: World, state: MembershipState) -> None:
        self._epoch = world.epoch
        self.progress.enter(world.epoch, world.members)
        self._node_of = {
            name: state.workers[name].node
            for name in world.members
            if name in state.workers
        }

    # ---- what follows ----

    def look(
        self, now_s: float, heard_s: Mapping[str, float], *, is_short: bool = False
    ) -> Look:
        """Returns what is to be done now.

        Args:
            now_s: The time, on the master's monotonic clock.
            heard_s: When each node was last heard of.
            is_short: Whether too few workers are there to train, so that none can hang.
        """
        if is_short:
            self.progress.rest(now_s)
        orders: list[_Order] = []
        waits = [_SOON_S, self._look_for_late_ones(now_s, heard_s)]
        judged, wait_s = self.failures.judge(now_s, self.progress.step)
        waits.append(wait_s)
        for one in judged:
            orders += self._follow(one)
            orders += self._suspect(now_s, one)
        why, wait_s = self.progress.look(now_s)
        waits.append(wait_s)
        if why:
            self._note("hang", str(self._epoch), why)
            self.progress.ask(now_s)
            orders.append(ShowStacks(why))
        orders += self._leave_out_slow_ones(now_s)
        found, silent, wait_s = self.progress.find_silent(now_s)
        waits.append(wait_s)
        if found:
            self._note("silent", ", ".join(silent) or "nobody", found)
        return Look(orders, max(0.0, min(one for one in waits if one is not None)))

    def ask_for_flights(self) -> None:
        """Notes that all agents are asked what their workers did last."""
        self.progress.ask(time.monotonic())

    def _leave_out_slow_ones(self, now_s: float) -> list[Exclude]:
        """Returns which nodes are excluded, since they have been slow for long enough."""
        orders = []
        for worker, (since_s, order) in list(self._slow.items()):
            if not self.progress.is_slow(worker):
                del self._slow[worker]
            elif now_s - since_s >= _SLOW_S:
                del self._slow[worker]
                orders.append(order)
        return orders

    def _look_for_late_ones(
        self, now_s: float, heard_s: Mapping[str, float]
    ) -> float | None:
        waits = []
        for node, at_s in heard_s.items():
            silent_s = now_s - at_s
            if silent_s < self._late_s:
                waits.append(self._late_s - silent_s)
                if node in self._late:
                    self._late.discard(node)
                    self._note("alert-over", node, "late: it is heard of again")
            elif node not in self._late:
                self._late.add(node)
                self._note("alert", node, f"late: not heard of for {silent_s:.1f} s")
        self._late &= heard_s.keys()
        return min(waits, default=None)

    def take_check(
        self, node: str, result: pb.CheckResult, present: Sequence[str]
    ) -> list[Exclude]:
        """Takes what a check has found; returns whom that convicts.

        Args:
            node: Whose check it was.
            result: What it has found.
            present: The nodes that are there.
        """
        self._note("check", node, result.reason)
        self._votes[node] = dict(result.faulty)
        found = convicted(self._votes, present)
        for bad in found:
            for votes in self._votes.values():
                votes.pop(bad, None)
        return [Exclude(bad, f"its check: {why}", True) for bad, why in found.items()]

    def _suspect(self, now_s: float, one: Judged) -> list[_Order]:
        """Has a node checked whose worker has failed in a way that may be its fault."""
        found = one.diagnosis
        node = found.node or self._node_of.get(found.worker, "")
        is_slow = found.failure_class == FailureClass.STRAGGLER
        goes = one.response.action in {Action.STOP_JOB, Action.REPLACE_NODE}
        # One that is slow stays for a while, in which its check may say why.
        if not node or (goes and not is_slow) or found.failure_class not in _SUSPICIOUS:
            return []
        if now_s - self._checked_s.get(node, -_CHECK_AGAIN_S) < _CHECK_AGAIN_S:
            return []
        self._checked_s[node] = now_s
        return [Check(node, f"{found.failure_class}, {found.cause}")]

    def _follow(self, one: Judged) -> list[_Order]:
        found, response = one.diagnosis, one.response
        what = f"{found.failure_class}, {found.cause}: {found.reason}"
        then = f"{response.action}: {response.reason}"
        self._note("diagnosis", found.worker or found.node, f"{what}; {then}")
        is_program = found.failure_class == FailureClass.PROGRAM
        if response.action == Action.STOP_JOB and not is_program and one.gets_on:
            # What a person would do now is to start it again, which it does by itself.
            why = "it has made steps since the last time"
            self._note("goes-on", found.worker, why)
            return []
        if response.action == Action.STOP_JOB:
            who = f"{found.worker} has failed, {what} ({response.reason})"
            return [StopJob(f"{who}\n{one.traceback}".rstrip())]
        if found.failure_class == FailureClass.NODE_LOST:
            # Silence says nothing of the hardware, unless it comes again and again.
            times = self.failures.count(found.failure_class, found.node)
            if times < _TIMES_LOST:
                return []
        if response.action == Action.REPLACE_NODE and found.node:
            broken = {
                FailureClass.GPU_HARDWARE,
                FailureClass.NODE_HARDWARE,
                FailureClass.CORRUPTION,
            }
            is_broken = found.failure_class in broken
            order = Exclude(found.node, f"{what} ({response.reason})", is_broken)
            if found.failure_class == FailureClass.STRAGGLER:
                # Something else may be going on there for a moment.
                self._slow[found.worker] = (time.monotonic(), order)
                return []
            return [order]
        return []
