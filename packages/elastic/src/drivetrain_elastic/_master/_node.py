"""Node as the master sees it, and the messages about nodes and worlds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from drivetrain_elastic._master._agent_stream import AgentStream
    from drivetrain_elastic._master._failure_history import Excluded
    from drivetrain_elastic._master._progress_monitor import Slowness
    from drivetrain_elastic.decisions.ending import Ending
    from drivetrain_elastic.decisions.membership import MembershipState
    from drivetrain_elastic.decisions.time_ledger import TimeLedger


@dataclass(kw_only=True, slots=True)
class Node:
    """A machine, or a part of one, that runs workers.

    Attributes:
        name: Which one.
        host: Its machine; empty while its agent has not come.
        pid: Its agent's process; 0 while it has not come.
        agent: What its agent calls itself.
        leave: Why and within which time it is to leave; None while it is not.
        num_slots: How many workers train there.
        stream: To the agent; None while there is none.
        heard_s: When it was last heard of.
        progress: Of its workers, by name, those that stand by included.
        machine: What it runs on.
        hardware: What it last said of itself.
        alerts: What it is alarmed about, by kind.
    """

    name: str
    host: str = ""
    pid: int = 0
    agent: str = ""
    leave: pb.LeaveRequest | None = None
    num_slots: int = 0
    stream: AgentStream | None = None
    heard_s: float = 0.0
    progress: dict[str, pb.WorkerProgress] = field(default_factory=dict)
    machine: str = ""
    hardware: pb.Hardware | None = None
    alerts: dict[str, pb.Alert] = field(default_factory=dict)

    def take_heartbeat(self, heartbeat: pb.Heartbeat) -> None:
        """Notes how the node and its workers do."""
        self.progress = {one.name: one for one in heartbeat.workers}
        if heartbeat.HasField("hardware"):
            self.hardware = heartbeat.hardware

    def take_alert(self, alert: pb.Alert) -> None:
        """Notes that something is not as it should be, or is so again."""
        if alert.is_over:
            self.alerts.pop(alert.kind, None)
        else:
            self.alerts[alert.kind] = alert

    def take_agent(self, hello: pb.Hello) -> bool:
        """Notes who the agent is; returns whether it is another one than before."""
        before = self.host, self.pid, self.agent
        self.host, self.pid, self.agent = hello.host, hello.pid, hello.agent
        self.num_slots = hello.num_slots
        self.machine = hello.machine or hello.node
        is_new = before != (self.host, self.pid, self.agent)
        if is_new:
            self.leave = None
            self.alerts.clear()
        return is_new


def describe_nodes(
    status: pb.Status,
    nodes: Iterable[Node],
    state: MembershipState,
    finished: Collection[str],
    slowness: Mapping[str, Slowness],
) -> None:
    """Fills in how nodes and their workers are, and the world that they make up.

    Args:
        status: Is filled in.
        nodes: All of them.
        state: Of the workers.
        finished: The names of those that have made all steps.
        slowness: How workers compare with the others.
    """
    now_s, world = time.monotonic(), state.world
    members = () if world is None else world.members
    ranks = {name: rank for rank, name in enumerate(members)}
    if world is not None:
        status.epoch, status.reason = world.epoch, world.reason
        status.world_size = len(members)
    if state.admitted is not None:
        status.admission.SetInParent()
        status.admission.nodes.extend(sorted(state.admitted))
    workers = state.workers.values()
    status_of = {one.name: one.status.value for one in workers}
    status_of |= dict.fromkeys(finished, "finished")
    for node in nodes:
        entry = status.nodes.add(
            node=node.name,
            host=node.host,
            pid=node.pid,
            num_slots=node.num_slots,
            silent_s=now_s - node.heard_s,
            hardware=node.hardware,
            alerts=list(node.alerts.values()),
            is_leaving=node.leave is not None,
        )
        here = [one.name for one in workers if one.node == node.name]
        for name in dict.fromkeys([*here, *node.progress]):
            one = node.progress.get(name, pb.WorkerProgress())
            slow = slowness.get(name)
            entry.workers.add(
                name=name,
                # Whom only the agent knows is there to take another one's place.
                status=status_of.get(name, "spare"),
                rank=ranks.get(name, -1),
                pid=one.pid,
                step=one.step,
                step_s=one.step_s,
                silent_s=one.silent_s,
                phase=one.phase,
                phase_s=one.phase_s,
                sections_s=one.window.sections_s,
                # Of another world it says nothing about the steps of this one.
                num_samples=(
                    one.window.num_samples if one.window.epoch == status.epoch else 0.0
                ),
                slowness=0.0 if slow is None else slow.ratio,
                slow_section="" if slow is None else slow.section,
            )


def describe_faults(
    status: pb.Status, time_ledger: TimeLedger, excluded: Mapping[str, Excluded]
) -> None:
    """Fills in where the time has gone, and which machines are excluded."""
    status.time.total_s = time_ledger.total_s
    status.time.effective_s = time_ledger.effective_s
    status.time.num_steps = time_ledger.num_steps
    status.time.num_samples = time_ledger.num_samples
    for row in time_ledger.lost:
        status.time.lost.add(**row._asdict())
    for one in excluded.values():
        status.excluded.add(**one._asdict())


def world_message(state: MembershipState) -> pb.ToAgent:
    """Returns what agents are told of the current world; an empty message for nothing.

    Args:
        state: Of the workers; it has a world.
    """
    world = state.world
    assert world is not None
    if any(name not in state.workers for name in world.members):
        # Somebody went while it was written: the next one is on its way, and this one
        # must not be told, since its ranks would be wrong.
        return pb.ToAgent()
    members = [
        pb.Member(name=name, node=state.workers[name].node) for name in world.members
    ]
    return pb.ToAgent(
        world=pb.World(
            epoch=world.epoch,
            members=members,
            reason=world.reason,
            broken_epoch=world.broken_epoch,
        )
    )


def leave_message(request: pb.LeaveRequest) -> pb.ToAgent:
    """Returns what the agent of a node that is to leave is told."""
    return pb.ToAgent(
        command=pb.Command(
            what=pb.Command.LEAVE,
            reason=request.reason,
            within_s=request.within_s,
            exit_code=request.exit_code,
        )
    )


def stop_message(ending: Ending, at_s: float = 0.0) -> pb.ToAgent:
    """Returns what agents are told of the end of the job.

    Args:
        ending: How it has ended.
        at_s: When, in seconds since 1970, for those that come later.
    """
    return pb.ToAgent(
        command=pb.Command(
            what=pb.Command.STOP_ALL,
            reason=ending.reason,
            exit_code=ending.exit_code,
            ended_at_s=at_s,
        )
    )
