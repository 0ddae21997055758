"""Membership of a worker of an agent: assignments and reports, over a local socket."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_core import DistributedError
from drivetrain_elastic._membership._rank_assignment import (
    CheckpointRequest,
    RankAssignment,
)
from drivetrain_elastic._membership._sigterm import HeldSigterm
from drivetrain_elastic._observability._flight_record import FlightRecord
from drivetrain_elastic._observability._stacks import answer_with_stacks
from drivetrain_elastic._observability._step_meter import Times

if TYPE_CHECKING:
    from collections.abc import Callable


_LAST_WORLD_S = 5.0


class AgentMembership:
    """Tells a worker its assignments, as the agent hears of worlds; safe in any thread.

    Args:
        path: Of the agent's socket.
        name: The worker's.
        beat_s: How often the agent hears of it.

    Raises:
        DistributedError: There is no agent.
    """

    def __init__(self, path: str, name: str, *, beat_s: float) -> None:
        self._name = name
        self._beat_s = beat_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            message = f"the agent of this node does not answer at {path}: {error}"
            raise DistributedError(message) from error
        self._assignment: RankAssignment | None = None
        self._is_leaving = False
        self._end_s = math.inf
        self._checkpoint_request: CheckpointRequest | None = None
        self._is_closed = False
        self._change = threading.Condition()
        self._sending, self._beating = threading.Lock(), threading.Lock()
        self._listeners: list[Callable[[RankAssignment], None]] = []
        self._step, self._step_s = 0, 0.0
        self._phase, self._phase_began_s = "starting", time.monotonic()
        self._times = Times()
        self._record = FlightRecord(flight_path(path, os.getpid()))
        answer_with_stacks(path)
        self._send("hello", name=name, pid=os.getpid())
        # In a thread, since the signal may come while something is being sent.
        self._terminated = threading.Event()
        self._sigterm = HeldSigterm(self._terminated.set)
        for run in (self._listen, self._beat, self._tell_of_signals):
            threading.Thread(
                target=run, name="drivetrain-membership", daemon=True
            ).start()

    # ---- what the agent says ----

    def _listen(self) -> None:
        with self._socket.makefile("rb") as lines:
            for line in lines:
                self._hear(json.loads(line))
        with self._change:
            self._is_closed = True
            self._change.notify_all()

    def _hear(self, message: dict[str, Any]) -> None:
        with self._change:
            if message["what"] == "leave":
                self._is_leaving = True
                self._end_s = time.monotonic() + message["within_s"]
                self._change.notify_all()
                return
            if message["what"] == "save":
                self._take_request(message)
                return
            if message["what"] == "stop":
                self._sigterm.end()
                return
            assignment = RankAssignment(
                message["epoch"],
                message["rank"],
                tuple(message["members"]),
                tuple(message["nodes"]),
                message["broken_epoch"],
                message["unit"],
            )
            if (
                self._assignment is not None
                and assignment.epoch < self._assignment.epoch
            ):
                return
            self._assignment = assignment
            self._change.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener(assignment)

    def _take_request(self, message: dict[str, Any]) -> None:
        self._checkpoint_request = None
        if message["request"]:
            end_s = time.monotonic() + message["within_s"]
            self._checkpoint_request = CheckpointRequest(
                message["request"], end_s, message["reason"]
            )

    def latest(self) -> RankAssignment | None:
        """Returns the last assignment that this worker has got."""
        with self._change:
            return self._assignment

    def wait(self, newer_than: int, timeout_s: float) -> RankAssignment | None:
        """Returns an assignment of a higher epoch as soon as there is one; None if not."""

        def is_new() -> bool:
            is_newer = (
                self._assignment is not None and self._assignment.epoch > newer_than
            )
            return is_newer or self._is_closed

        with self._change:
            self._change.wait_for(lambda: is_new() or self._is_leaving, timeout_s)
            if self._is_leaving:
                # It may be wanted once more, to hand the state over.
                self._change.wait_for(is_new, min(timeout_s, _LAST_WORLD_S))
            if self._is_closed:
                message = "the agent of this node is gone"
                raise DistributedError(message)
            if self._assignment is not None and self._assignment.epoch > newer_than:
                return self._assignment
            return None

    def subscribe(self, heard: Callable[[RankAssignment], None]) -> Callable[[], None]:
        """Calls a function, from a thread, for each assignment; returns what ends that."""
        with self._change:
            self._listeners.append(heard)

        def end() -> None:
            with self._change:
                self._listeners.remove(heard)

        return end

    def is_leaving(self) -> bool:
        """Whether this worker is to end when the world no longer has it."""
        with self._change:
            return self._is_leaving

    def end_s(self) -> float:
        """When this worker may be gone; infinite while nobody has said so."""
        with self._change:
            return self._end_s

    def checkpoint_request(self) -> CheckpointRequest | None:
        """Returns the checkpoint that is asked for now; None for none."""
        request = self._checkpoint_request
        is_due = request is not None and time.monotonic() < request.end_s
        return request if is_due else None

    # ---- what the worker says ----

    def _beat(self) -> None:
        while not self._is_closed:
            self._beat_once()
            time.sleep(self._beat_s)

    def _beat_once(self) -> None:
        # One beat after the other, so that the last one is the newest.
        with self._beating:
            phase_s = time.monotonic() - self._phase_began_s
            fields = {"step": self._step, "step_s": self._step_s}
            fields |= _as_plain(self._times)
            self._send("beat", **fields, phase=self._phase, phase_s=phase_s)

    def _tell_of_signals(self) -> None:
        while not self._is_closed:
            self._terminated.wait()
            self._terminated.clear()
            self._send("terminated")

    def _send(self, what: str, **fields: Any) -> None:
        line = json.dumps({"what": what, **fields}) + "\n"
        try:
            with self._sending:
                self._socket.sendall(line.encode())
        except OSError:
            # The listening thread finds the agent gone, and says so.
            self._is_closed = True

    def report_ready(self) -> None:
        """Tells that this worker can be assigned a rank."""
        self._send("ready")

    def report_phase(self, phase: str) -> None:
        """Tells what this worker does from now on."""
        self._phase, self._phase_began_s = phase, time.monotonic()

    def report_step(self, step: int, seconds: float) -> None:
        """Tells how far this worker is."""
        self._step, self._step_s = step, seconds

    def report_times(self, times: Times) -> None:
        """Tells where the time of this worker has gone."""
        self._times = times

    def flight_record(self) -> FlightRecord:
        """Returns where this worker is to note what it does, for the agent to read."""
        return self._record

    def report_broken(self, epoch: int, reason: str) -> None:
        """Tells that collectives of a world fail, so that another one is needed."""
        self._send("broken", epoch=epoch, reason=reason)

    def report_saved(
        self, request: CheckpointRequest, step: int, seconds: float, failure: str
    ) -> None:
        """Tells that a checkpoint is durable, or why it is not."""
        fields = {"step": step, "seconds": seconds, "failure": failure}
        self._send("saved", request=request.id, **fields)

    def report_end(self, *, is_finished: bool) -> None:
        """Tells that this worker has made all steps, or has left before, and how far it is."""
        self._beat_once()
        self._send("finished" if is_finished else "left")


def flight_path(agent: str, pid: int) -> Path:
    """Returns where a worker notes what it does.

    Args:
        agent: Where its agent listens; the file lies beside it.
        pid: The worker's process.
    """
    return Path(agent).with_name(f"flight-{pid}")


def _as_plain(times: Times) -> dict[str, Any]:
    """Returns what a rank says of its time, for JSON."""
    plain: dict[str, Any] = {}
    if times.accounts:
        plain["accounts"] = [[epoch, *one] for epoch, one in times.accounts.items()]
    if times.window is not None:
        plain["window"] = times.window._asdict()
    return plain
