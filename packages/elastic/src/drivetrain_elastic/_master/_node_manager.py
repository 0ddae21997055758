"""Node manager: nodes, their workers, the world; it excludes a node that can be spared."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

from drivetrain_core import ProgramError
from drivetrain_elastic._master._exit_records import ExitRecords
from drivetrain_elastic._master._fault_manager import (
    Check,
    Exclude,
    FaultManager,
    ShowStacks,
    StopJob,
)
from drivetrain_elastic._master._job_settings import JobSettings
from drivetrain_elastic._master._membership_publisher import MembershipPublisher
from drivetrain_elastic._master._node import (
    describe_faults,
    describe_nodes,
    leave_message,
)
from drivetrain_elastic._master._node_registry import NodeRegistry
from drivetrain_elastic._master._reclaims import Reclaims
from drivetrain_elastic.decisions.ending import Ending, judge_ending
from drivetrain_elastic.decisions.membership import (
    MembershipConfig,
    MembershipState,
    Status,
    Worker,
    World,
    can_do_without,
    next_world,
)
from drivetrain_elastic.decisions.past_ending import describe_past_ending
from drivetrain_elastic.decisions.presence import judge_presence
from drivetrain_elastic.journal import Record
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from drivetrain_elastic._master._agent_stream import AgentStream
    from drivetrain_elastic._master._events import EventLog
    from drivetrain_elastic._master._journal_writer import JournalWriter
    from drivetrain_elastic._master._key_value_store import KeyValueStore
    from drivetrain_elastic._master._node import Node

logger = logging.getLogger(__name__)

# A master that slept for longer than this has not listened, and blames no node for it.
_NAP_S = 0.5
_LONGEST_WAIT_S = 1.0
# How long the workers of a node that is excluded have to leave.
_EXCLUDED_S = 30.0
# What people should see in the output of any agent.
_NOTICES = frozenset(
    [
        "excluded",
        "hang",
        "not-excluded",
        "silent",
        "straggler",
        "straggler-over",
        "waits",
    ]
)


class ExcludedNodeError(ProgramError):
    """The machine of a node was found faulty."""


class NodeManager:
    """Keeps who is there, and decides worlds; used from one event loop.

    Args:
        writer: Of the journal, which has a world before anybody enters it.
        events: Where people read of worlds.
        store: In which the ranks of a world meet.
        incarnation: Which master this is.
        heartbeat_s: How often an agent is to be heard of.
        timeout_s: After what silence a node is gone.
    """

    def __init__(
        self,
        writer: JournalWriter,
        events: EventLog,
        store: KeyValueStore,
        *,
        incarnation: int,
        heartbeat_s: float,
        timeout_s: float,
    ) -> None:
        self._events = events
        self._welcome = pb.Welcome(incarnation=incarnation, heartbeat_s=heartbeat_s)
        self._timeout_s = timeout_s
        self._registry = NodeRegistry()
        self._state = MembershipState()
        self._ending: Ending | None = None
        self._records: list[Record] = []
        self._settings = JobSettings(self._records)
        self._reclaims = Reclaims(self._note, self._registry.tell_all)
        self._exit_records = ExitRecords(self._records)
        self._faults = FaultManager(self._records, self._note, late_s=2 * heartbeat_s)
        # What is durable, and may be told to whoever comes.
        self._publisher = MembershipPublisher(writer, store, self._registry.tell_all)
        self._changed = asyncio.Event()

    # ---- the journal ----

    def replay(self, record: Record) -> bool:
        """Takes a record of the journal; returns whether it was one of these."""
        body = record.body
        if record.kind == "admission":
            self._state.admitted = None if body is None else frozenset(body)
        elif record.kind == "world":
            admitted = self._state.admitted
            self._state = MembershipState(nodes=self._state.nodes, admitted=admitted)
            for name, node, slot in body["members"]:
                # It may have the state, and says so soon if it has not lost it.
                member = Worker(name, node, slot, Status.MEMBER, has_state=True)
                self._state.add(member)
            members = tuple(name for name, *_ in body["members"])
            self._state.enter(World(**{**body, "members": members}))
        elif record.kind == "ended":
            self._ending = Ending(body["exit_code"], body["reason"])
        else:
            keepers = (self._settings, self._exit_records, self._faults)
            return any(one.replay(record) for one in keepers)
        return True

    def dump(self) -> list[Record]:
        """Returns records that take the place of all that were written."""
        records = self._settings.dump()
        if self._state.admitted is not None:
            records.append(Record("admission", sorted(self._state.admitted)))
        if self._state.world is not None:
            records.append(self._world(self._state.world))
        records += self._exit_records.dump() + self._faults.dump()
        if self._ending is not None:
            records.append(Record("ended", self._ending._asdict()))
        return records

    def begin(self) -> None:
        """Waits from now on for the nodes of the world that was replayed."""
        # Of a job that has ended nobody is missed.
        for worker in self._state.workers.values() if self._ending is None else ():
            self._registry.expect(worker.node)
        self._faults.begin(self._state)
        ended_at_s = self._events.last_s("ended") or 0.0
        self._publisher.go_on(self._state, self._ending, ended_at_s)
        if self._ending is not None:
            logger.warning("%s", describe_past_ending(self._ending, ended_at_s))

    def _world(self, world: World) -> Record:
        workers = [self._state.workers[name] for name in world.members]
        members = [[one.name, one.node, one.slot] for one in workers]
        return Record("world", {**world._asdict(), "members": members})

    # ---- agents ----

    async def attend(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Takes an agent's messages and yields what it is to know.

        Raises:
            DuplicateNodeError: Another agent has the name.
            ProgramError: The first message is no greeting, or its terms are others.
        """
        first = await anext(requests, None)
        if first is None or first.WhichOneof("what") != "hello":
            message = "the first message of an agent must say who it is"
            raise ProgramError(message)
        node, stream = self._open(first.hello)
        reader = asyncio.create_task(self._read(node, stream, requests))
        try:
            async for message in stream.messages():
                yield message
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def _read(
        self, node: Node, stream: AgentStream, requests: AsyncIterator[Any]
    ) -> None:
        try:
            async for message in requests:
                if node.stream is not stream:
                    return
                node.heard_s = time.monotonic()
                self._take(node, message)
        except Exception as error:  # noqa: BLE001
            # The stream is broken; the node may come back on another one.
            logger.info("the line to node %s is broken: %s", node.name, error)
        finally:
            stream.close()
            if node.stream is stream:
                node.stream = None

    def _open(self, hello: pb.Hello) -> tuple[Node, AgentStream]:
        name = hello.node
        if not name:
            message = "a node must have a name"
            raise ProgramError(message)
        self._refuse_excluded(hello)
        self._settings.agree(hello.terms)
        self._faults.failures.expect_hangs(hello.terms.stuck_s)
        self._faults.time.begin()
        node, is_new = self._registry.open(hello)
        stream = node.stream
        assert stream is not None
        if name not in self._state.nodes:
            self._state.nodes.append(name)
        if is_new:
            what = f"process {hello.pid} on {hello.host} with {hello.num_slots} places"
            self._note("node-joined", name, what)
        self._meet(node, hello.workers)
        welcome = pb.ToAgent(welcome=self._welcome)
        welcome.welcome.place = self._registry.place_of(name, self._state.nodes)
        stream.send(welcome)
        told = self._publisher.world
        members = [one.name for one in told.world.members]
        is_told = told.HasField("world")
        if self._publisher.ending is not None:
            # Nobody enters the last world any more.
            stream.send(self._publisher.ending)
        elif is_told and all(name in self._state.workers for name in members):
            stream.send(told)
        order = self._reclaims.save_message()
        if order is not None:
            stream.send(order)
        self._take_again(node, hello)
        self._changed.set()
        return node, stream

    def _refuse_excluded(self, hello: pb.Hello) -> None:
        excluded = self._faults.failures.excluded.get(hello.machine or hello.node)
        known = self._registry.get(hello.node)
        is_leaving = known is not None and known.agent == hello.agent and known.leave
        # One that is still about to leave is told so again.
        if excluded is not None and not is_leaving:
            message = (
                f"machine {excluded.machine!r} is excluded from this job: "
                f"{excluded.reason}; `drivetrain-elastic readmit {excluded.machine}` lets "
                "it take part again"
            )
            raise ExcludedNodeError(message)

    def _take_again(self, node: Node, hello: pb.Hello) -> None:
        """Takes what was said before, and may not have been heard or written."""
        if hello.HasField("broken"):
            self._take_broken(hello.broken)
        known = dict(node.alerts)
        node.alerts.clear()
        for alert in hello.alerts:
            node.take_alert(alert)
            if alert.kind not in known or alert.HasField("failure"):
                self._faults.take_alert(node.name, alert)
        if hello.HasField("check"):
            self._take_check(node, hello.check)
        notice = hello.notice if hello.HasField("notice") else None
        self._reclaims.take_notice(node.name, notice)
        if hello.HasField("saved"):
            self._reclaims.take_saved(hello.saved)
        leave = hello.leave if hello.HasField("leave") else node.leave
        if leave is not None:
            self.leave(node.name, leave.within_s, leave.reason, leave.exit_code)

    def _take_broken(self, broken: pb.Broken) -> None:
        why = f"{broken.worker}: {broken.reason}"
        self._state.set_broken(broken.epoch, why, time.monotonic())

    def _meet(self, node: Node, reports: Iterable[pb.WorkerReport]) -> None:
        """Compares the workers that an agent has with those that were known."""
        reports = list(reports)
        here = {report.name for report in reports}
        known = [w.name for w in self._state.workers.values() if w.node == node.name]
        gone = [name for name in known if name not in here]
        self._miss(gone, f"is gone with an agent of node {node.name}")
        if gone:
            # A new agent is there, sooner than the silence of the last one was noticed.
            self._faults.lose_workers(gone, node.name, "its agent has ended")
        self._state.remove(gone)
        for report in reports:
            self._take_report(node, report)

    def _take(self, node: Node, message: pb.FromAgent) -> None:
        what = message.WhichOneof("what")
        if what == "heartbeat":
            node.take_heartbeat(message.heartbeat)
            self._faults.take_progress(message.heartbeat.workers)
            for name, one in node.progress.items():
                if one.step > 0 and self._state.set_has_state(name):
                    self._changed.set()
            return
        if what == "goodbye":
            self._lose(node, message.goodbye.reason, is_loss=False)
        elif what == "workers":
            for report in message.workers.reports:
                self._take_report(node, report)
        elif what == "broken":
            self._take_broken(message.broken)
        elif what == "stuck":
            self._note("stuck", node.name, message.stuck.reason)
            self._faults.ask_for_flights()
            self._dump_stacks(message.stuck.reason)
        elif what == "flights":
            self._faults.progress.take_flights(message.flights)
        elif what == "alert":
            node.take_alert(message.alert)
            self._faults.take_alert(node.name, message.alert)
        elif what == "check":
            self._take_check(node, message.check)
        elif what == "leave":
            self.leave(node.name, message.leave.within_s, message.leave.reason)
        elif what == "notice":
            self._reclaims.take_notice(node.name, message.notice)
        elif what == "saved":
            self._reclaims.take_saved(message.saved)
        self._changed.set()

    def _take_check(self, node: Node, check: pb.CheckResult) -> None:
        present = self._registry.present()
        for order in self._faults.take_check(node.name, check, present):
            self._exclude(order)

    def _take_report(self, node: Node, report: pb.WorkerReport) -> None:
        name, state = report.name, report.state
        if report.HasField("failure"):
            self._faults.failures.take(name, node.name, report.failure)
        if report.HasField("progress"):
            self._faults.time.take([report.progress])
        worker = self._state.workers.get(name)
        if state in {pb.WorkerReport.STARTING, pb.WorkerReport.READY}:
            if worker is None:
                status = Status.STARTING if node.leave is None else Status.LEAVING
                worker = Worker(name, node.name, report.slot, status)
                self._state.add(worker)
            if state == pb.WorkerReport.READY and worker.status == Status.STARTING:
                self._state.set_status(name, Status.STANDBY, time.monotonic())
            return
        if state == pb.WorkerReport.FINISHED:
            # Its node may have been missed for a time, in which nobody took its place.
            if worker is None and not self._is_member(name):
                return
            if self._exit_records.finish(name) and report.exit_code:
                self._fail(name, report.reason)
            return
        # One that never lived is not known, but that its place stays empty counts.
        if report.given_up and state == pb.WorkerReport.FAILED:
            is_news = self._exit_records.give_up(name, report.reason)
            if is_news and worker is None:
                self._note("worker-failed", name, report.reason)
        if worker is None:
            return
        self._state.remove([name])
        node.progress.pop(name, None)
        if self._is_member(name):
            self._faults.time.lose()
        if state == pb.WorkerReport.FAILED:
            self._fail(name, report.reason)

    def _is_member(self, name: str) -> bool:
        world = self._state.world
        return world is not None and name in world.members

    def _fail(self, name: str, reason: str) -> None:
        self._note("worker-failed", name, reason)
        self._exit_records.fail(name, reason)

    def _miss(self, names: Iterable[str], why: str) -> None:
        self._exit_records.miss((name for name in names if self._is_member(name)), why)

    def _lose(self, node: Node, why: str, *, is_loss: bool) -> None:
        finished = self._exit_records.results.finished
        here = [w.name for w in self._state.workers.values() if w.node == node.name]
        gone = [name for name in here if name not in finished]
        if is_loss:
            self._miss(gone, f"is gone with node {node.name}")
            self._faults.lose_workers(gone, node.name, why)
            self._faults.time.lose()
        self._state.remove(gone)
        self._registry.remove(node)
        self._reclaims.forget(node.name)
        self._note("node-lost" if is_loss else "node-left", node.name, why)
        self._changed.set()

    # ---- what people ask for ----

    def leave(
        self, name: str, within_s: float, reason: str, exit_code: int = 0
    ) -> None:
        """Lets the workers of a node leave at the end of a step.

        Its agent ends with the exit code.

        Raises:
            ProgramError: There is no such node.
        """
        node = self._registry.get(name)
        if node is None or node.stream is None:
            there = ", ".join(sorted(one.name for one in self._registry)) or "none"
            message = f"there is no node {name!r}; there are: {there}"
            raise ProgramError(message)
        if node.leave is None:
            self._note("leave", name, reason)
        node.leave = pb.LeaveRequest(
            node=name, within_s=within_s, reason=reason, exit_code=exit_code
        )
        node.stream.send(leave_message(node.leave))
        self._reclaims.take_leave(name, within_s)
        now_s = time.monotonic()
        for worker in list(self._state.workers.values()):
            if worker.node == name:
                self._state.set_status(worker.name, Status.LEAVING, now_s)
        self._changed.set()

    def stop(self, reason: str, exit_code: int) -> None:
        """Ends the job."""
        if self._ending is None:
            self._end(Ending(exit_code, reason))
            self._changed.set()

    def save(self, order: pb.SaveRequest) -> None:
        """Asks the ranks for a checkpoint."""
        self._reclaims.ask_to_save(order)
        self._changed.set()

    def admit(self, admission: pb.Admission) -> None:
        """Lets only these nodes train from the end of a step on; none pauses it."""
        admitted = frozenset(admission.nodes)
        if admitted != self._state.admitted:
            self._state.admitted = admitted
            self._records.append(Record("admission", sorted(admitted)))
            names = ", ".join(sorted(admitted)) or "nobody"
            self._note("admitted", names, admission.reason)
            self._changed.set()

    def readmit(self, machine: str) -> None:
        """Lets a machine that was excluded take part again.

        Raises:
            ProgramError: It is not excluded.
        """
        self._faults.failures.readmit(machine)
        self._note("readmitted", machine, "somebody asked for it")
        self._changed.set()

    def _exclude(self, order: Exclude) -> None:
        """Excludes a node, unless the job needs it and it may still work."""
        machine = self._registry.machine_of(order.node)
        config = self._settings.config
        assert config is not None
        if not (order.is_broken or can_do_without(order.node, self._state, config)):
            why = f"{order.reason}; it stays, since no other could take its place"
            self._note("not-excluded", order.node, why)
            return
        if not self._faults.failures.exclude(machine, order.node, order.reason):
            return
        self._note("excluded", order.node, order.reason)
        why = f"it is excluded: {order.reason}"
        for node in self._registry:
            if node.machine == machine and node.stream is not None:
                self.leave(node.name, _EXCLUDED_S, why, exit_code=1)

    def _dump_stacks(self, reason: str) -> None:
        """Lets all workers write down what they are doing."""
        command = pb.Command(what=pb.Command.DUMP_STACKS, reason=reason)
        self._registry.tell_all(pb.ToAgent(command=command))

    def describe(self, status: pb.Status) -> None:
        """Fills in how the nodes and their workers are."""
        describe_nodes(
            status,
            self._registry,
            self._state,
            self._exit_records.results.finished,
            self._faults.progress.slowness,
        )
        self._reclaims.describe(status)
        describe_faults(
            status, self._faults.time.ledger(), self._faults.failures.excluded
        )
        if self._ending is not None:
            status.ended, status.exit_code = self._ending.reason, self._ending.exit_code

    # ---- decisions ----

    async def run(self) -> None:
        """Decides until it is cancelled.

        Raises:
            JournalError: Another master has taken over.
        """
        while True:
            self._changed.clear()
            wait_s = self._decide()
            if self._records:
                records = self._records.copy()
                self._records.clear()
                await self._publisher.publish(records, self._state, self._ending)
                continue
            began_s = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            overslept_s = time.monotonic() - began_s - wait_s
            if overslept_s > _NAP_S:
                self._registry.forgive(overslept_s)

    def _decide(self) -> float:
        """Changes what is to be changed; returns when to look again, in seconds."""
        now_s = time.monotonic()
        heard_s = self._registry.heard_s()
        presence = judge_presence(now_s, heard_s, timeout_s=self._timeout_s)
        for node in self._registry:
            if node.name in presence.lost:
                why = f"not heard of for {presence.lost[node.name]:.1f} s"
                self._lose(node, why, is_loss=True)
        results = self._exit_records.results
        is_short = results.short_since_s is not None
        look = self._faults.look(now_s, self._registry.heard_s(), is_short=is_short)
        waits = [_LONGEST_WAIT_S, presence.wait_s, look.wait_s]
        for order in look.orders if self._ending is None else []:
            if isinstance(order, StopJob):
                self._end(Ending(1, order.reason))
            elif isinstance(order, Exclude):
                self._exclude(order)
            elif isinstance(order, Check):
                check = pb.Command(what=pb.Command.CHECK, reason=order.reason)
                self._registry.tell(order.node, pb.ToAgent(command=check))
            elif isinstance(order, ShowStacks):
                self._dump_stacks(order.reason)
        config = self._settings.config
        if config is None or self._ending is not None:
            return min(one for one in waits if one is not None)
        waits.append(self._answer_notices(now_s, config))
        verdict = next_world(now_s, self._state, config)
        if verdict.is_short and self._registry.is_coming(self._state):
            # It may get the state from those that would leave.
            verdict = verdict._replace(world=None)
        if not verdict.is_short:
            results.short_since_s = None
        elif results.short_since_s is None:
            results.short_since_s = now_s
            world = self._state.world
            if world is not None and verdict.world is None and not results.finished:
                self._note("waits", str(world.epoch), verdict.reason)
        ending = judge_ending(
            now_s, self._state, results, verdict, patience_s=self._settings.patience_s
        )
        if isinstance(ending, Ending):
            self._end(ending)
        elif verdict.world is not None and not results.finished:
            self._enter(verdict.world)
        else:
            waits += [ending, verdict.wait_s]
        return max(0.0, min(one for one in waits if one is not None))

    def _answer_notices(self, now_s: float, config: MembershipConfig) -> float | None:
        """Lets nodes leave in time that will be taken away; returns when to look again."""
        training = [
            node
            for node in self._registry
            if node.stream is not None
            and any(self._is_member(one) for one in node.progress)
        ]
        is_short = next_world(now_s, self._state, config).is_short
        found = self._reclaims.judge(now_s, training, is_short=is_short)
        for name in found.leave:
            notice = self._reclaims.notice_of(name)
            assert notice is not None
            self.leave(name, notice.within_s, notice.reason)
        return found.wait_s

    def _enter(self, world: World) -> None:
        self._faults.enter(world, self._state)
        self._state.enter(world)
        self._records.append(self._world(world))
        self._note("world", str(world.epoch), world.reason)

    def _end(self, ending: Ending) -> None:
        self._ending = ending
        self._faults.time.end()
        self._records.append(Record("ended", ending._asdict()))
        self._note("ended", str(ending.exit_code), ending.reason)

    def _note(self, kind: str, subject: str, reason: str) -> None:
        logger.info("%s %s: %s", kind, subject, reason)
        self._records.append(self._events.make(kind, subject, reason))
        if kind in _NOTICES:
            notice = pb.Notice(kind=kind, subject=subject, reason=reason)
            self._registry.tell_all(pb.ToAgent(notice=notice))
