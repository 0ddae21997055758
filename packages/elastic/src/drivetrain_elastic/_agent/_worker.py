"""Worker on this node: its process, its connection, and what is known of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from drivetrain_elastic.decisions.liveness import Signs
from drivetrain_elastic.protocol import messages as pb
from drivetrain_health.failures import Health

if TYPE_CHECKING:
    from drivetrain_elastic._agent._process import ChildProcess
    from drivetrain_elastic._agent._worker_connection import WorkerConnection


class Stage(StrEnum):
    """How far a worker is with its program."""

    STARTING = "starting"
    READY = "ready"
    FINISHED = "finished"
    LEFT = "left"


@dataclass(kw_only=True, slots=True, eq=False)
class LocalWorker:
    """A worker on this node.

    Attributes:
        name: Which one.
        slot: The place that it was started for.
        copy: Which processes hold a copy of the model together: a number that they share.
        is_spare: Whether it only stands by.
        process: Its process; None until it is known.
        connection: To it; None until it has called.
        stage: How far it is.
        began_s: When it was started.
        heard_s: When it was last heard of.
        step: The last step that it has made.
        step_s: How long that took.
        phase: What it does.
        phase_began_s: Since when.
        why_killed: Why the agent has killed it; empty if it has not.
        health: What the agent found when it killed it.
        accounts: How it has spent its time in the last worlds.
        window: Its last window of steps; None before the first.
        num_oom_kills: How many processes of this node's control group the kernel had
            killed for want of memory when it was started.
    """

    name: str
    slot: int
    copy: int
    is_spare: bool
    process: ChildProcess | None = None
    connection: WorkerConnection | None = None
    stage: Stage = Stage.STARTING
    began_s: float = 0.0
    heard_s: float = 0.0
    step: int = 0
    step_s: float = 0.0
    phase: str = "starting"
    phase_began_s: float = 0.0
    why_killed: str = ""
    health: Health = Health.WELL
    accounts: tuple[pb.Account, ...] = ()
    window: pb.SectionWindow | None = None
    num_oom_kills: int = 0

    def take_beat(self, message: dict[str, Any]) -> None:
        """Notes what the worker says of itself."""
        self.step, self.step_s = message["step"], message["step_s"]
        self.phase = message["phase"]
        self.phase_began_s = time.monotonic() - message["phase_s"]
        if "accounts" in message:
            names = [field.name for field in pb.Account.DESCRIPTOR.fields]
            self.accounts = tuple(
                pb.Account(**dict(zip(names, values, strict=True)))
                for values in message["accounts"]
            )
        if "window" in message:
            self.window = pb.SectionWindow(**message["window"])

    def signs(self) -> Signs:
        """Returns what is seen of it now."""
        assert self.process is not None
        now_s = time.monotonic()
        state, idle_s = self.process.look()
        silent_s = now_s - self.heard_s if self.connection is not None else 0.0
        return Signs(
            silent_s=silent_s,
            idle_s=idle_s,
            state=state,
            phase=self.phase,
            phase_s=now_s - self.phase_began_s,
        )

    def report(self) -> pb.WorkerReport:
        """Returns what the master is to know while it lives."""
        state = pb.WorkerReport.STARTING
        if self.stage != Stage.STARTING:
            state = pb.WorkerReport.READY
        return pb.WorkerReport(name=self.name, slot=self.slot, state=state)

    def progress(self) -> pb.WorkerProgress:
        """Returns its heartbeat."""
        now_s = time.monotonic()
        return pb.WorkerProgress(
            name=self.name,
            pid=self.process.pid if self.process is not None else 0,
            step=self.step,
            step_s=self.step_s,
            silent_s=now_s - self.heard_s,
            phase=self.phase,
            phase_s=now_s - self.phase_began_s,
            accounts=self.accounts,
            window=self.window,
        )
