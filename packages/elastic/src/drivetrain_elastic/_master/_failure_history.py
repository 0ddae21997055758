"""Failure history: what has failed and why, what follows, which machines are excluded."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import ProgramError
from drivetrain_elastic.journal import Record
from drivetrain_health.failures import (
    Action,
    Diagnosis,
    FailureClass,
    Finding,
    Incident,
    Response,
    ResponseConfig,
    respond,
    root_cause,
)

if TYPE_CHECKING:
    from drivetrain_elastic.protocol import messages as pb

# What may be an echo of another failure waits so long for it.
_ECHO_S = 2.0
# Failures so close to each other may have one cause.
_TOGETHER_S = 5.0
_MOST = 10_000
# Failures that take so long to be noticed must still fit into the window.
_HANGS = 6


class Excluded(NamedTuple):
    """A machine that may not take part.

    Attributes:
        machine: Which one.
        node: Which node it was.
        reason: Why.
        at_s: When it was excluded, in seconds since 1970; for people.
    """

    machine: str
    node: str
    reason: str
    at_s: float


class Judged(NamedTuple):
    """A failure, and what follows from it.

    Attributes:
        diagnosis: Why it has failed.
        response: What follows.
        traceback: Of the program's error, if it was one.
        gets_on: Whether steps were made since the last failure of its class.
    """

    diagnosis: Diagnosis
    response: Response
    traceback: str
    gets_on: bool = False


class FailureHistory:
    """Keeps what has failed, for this master and the next one; used from one event loop.

    Args:
        records: Takes what is to be written.
    """

    def __init__(self, records: list[Record]) -> None:
        self._records = records
        self._config = ResponseConfig()
        self._incidents: list[Incident] = []
        self._by_worker: dict[str, Diagnosis] = {}
        self._taken: set[str] = set()
        # The last step when a class of failures was last seen.
        self._step_at: dict[FailureClass, int] = {}
        self._waiting: list[tuple[Finding, str]] = []
        self._recent: list[Finding] = []
        self.excluded: dict[str, Excluded] = {}

    # ---- the journal ----

    def replay(self, record: Record) -> bool:
        """Takes a record of the journal; returns whether it was one of these."""
        if record.kind == "incident":
            # A time of another master's clock: that it is past is all that is known.
            at_s, failure_class, *rest, step = record.body
            lost_s = max(0.0, time.time() - at_s)
            incident = Incident(
                time.monotonic() - lost_s, FailureClass(failure_class), *rest
            )
            self._incidents.append(incident._replace(action=Action(incident.action)))
            # What a node told before any worker failed of it may come again.
            is_of_a_worker = incident.worker != incident.node
            if is_of_a_worker and incident.failure_class != FailureClass.STRAGGLER:
                self._taken.add(incident.worker)
            self._step_at[incident.failure_class] = step
            self._by_worker[incident.worker] = Diagnosis(
                incident.failure_class,
                incident.cause,
                incident.node,
                "",
                incident.worker,
            )
        elif record.kind == "excluded":
            one = Excluded(*record.body)
            self.excluded[one.machine] = one
        elif record.kind == "readmitted":
            self.excluded.pop(record.body, None)
        else:
            return False
        return True

    def dump(self) -> list[Record]:
        """Returns records that take the place of all that were written."""
        now_s = time.monotonic()
        return [
            *(self._record(one, now_s) for one in self._incidents[-_MOST:]),
            *(Record("excluded", list(one)) for one in self.excluded.values()),
        ]

    # ---- failures ----

    def of(self, worker: str) -> Diagnosis | None:
        """Returns why a worker has failed, if that is known."""
        return self._by_worker.get(worker)

    def expect_hangs(self, stuck_s: float) -> None:
        """Has failures count for long enough that hangs add up.

        Args:
            stuck_s: How long it may take until one is noticed.
        """
        if math.isfinite(stuck_s):
            window_s = max(self._config.window_s, _HANGS * stuck_s)
            self._config = replace(self._config, window_s=window_s)

    def count(self, failure_class: FailureClass, node: str) -> int:
        """Returns how often a node has failed so, within the time that counts."""
        since_s = time.monotonic() - self._config.window_s
        return sum(
            one.failure_class == failure_class and one.node == node
            for one in self._incidents
            if one.at_s > since_s
        )

    def take(self, worker: str, node: str, failure: pb.Failure) -> bool:
        """Takes what an agent has found; returns whether it is news.

        Args:
            worker: That has failed; the node's name for what no worker has failed of yet.
            node: Where it ran.
            failure: What was found.
        """
        if worker in self._taken:
            return False
        if worker != node:
            # It fails once, though it may have been slow before.
            self._taken.add(worker)
        try:
            failure_class = FailureClass(failure.failure_class)
        except ValueError:
            # Of an agent that knows more classes than this master.
            failure_class = FailureClass.UNKNOWN
        diagnosis = Diagnosis(
            failure_class,
            failure.cause,
            node if failure.blames_node else "",
            failure.evidence,
            worker,
            failure.place,
            failure.is_echo,
        )
        self.add(diagnosis, failure.traceback)
        return True

    def add(self, diagnosis: Diagnosis, traceback: str = "") -> None:
        """Takes a failure, of which `judge` says what follows."""
        finding = Finding(time.monotonic(), diagnosis)
        self._by_worker[diagnosis.worker] = diagnosis
        self._recent.append(finding)
        self._waiting.append((finding, traceback))

    def judge(self, now_s: float, step: int) -> tuple[list[Judged], float | None]:
        """Returns what follows from failures, and when to ask again, in seconds.

        Args:
            now_s: The time, on the master's monotonic clock.
            step: The last one that was made.
        """
        judged, waiting = [], []
        self._recent = [f for f in self._recent if now_s - f.at_s < _TOGETHER_S]
        for finding, traceback in self._waiting:
            found = finding.diagnosis
            if found.is_echo and now_s - finding.at_s < _ECHO_S:
                waiting.append((finding, traceback))
                continue
            around = [
                one
                for one in self._recent
                if abs(one.at_s - finding.at_s) < _TOGETHER_S
            ]
            root = root_cause([*around, finding]) if found.is_echo else found
            if root.worker != found.worker:
                why = f"an echo of {root.worker}: {root.failure_class}, {root.cause}"
                response = Response(Action.RESTART_IN_PLACE, why)
                judged.append(Judged(found, response, ""))
                continue
            response = respond(now_s, found, self._incidents, self._config)
            before = self._step_at.get(found.failure_class)
            self._step_at[found.failure_class] = step
            self._note(now_s, found, response)
            gets_on = before is not None and step > before
            judged.append(Judged(found, response, traceback, gets_on))
        self._waiting = waiting
        soonest = [finding.at_s + _ECHO_S - now_s for finding, _ in waiting]
        return judged, min(soonest, default=None)

    def _note(self, now_s: float, found: Diagnosis, response: Response) -> None:
        incident = Incident(
            now_s,
            found.failure_class,
            found.cause,
            found.node,
            found.worker,
            response.action,
            found.place,
        )
        self._incidents.append(incident)
        self._records.append(self._record(incident, now_s))

    def _record(self, one: Incident, now_s: float) -> Record:
        at_s = time.time() - (now_s - one.at_s)
        step = self._step_at.get(one.failure_class, 0)
        return Record("incident", [at_s, *one[1:], step])

    # ---- machines ----

    def exclude(self, machine: str, node: str, reason: str) -> bool:
        """Notes that a machine may not take part; returns whether that is news."""
        if machine in self.excluded:
            return False
        one = Excluded(machine, node, reason, time.time())
        self.excluded[machine] = one
        self._records.append(Record("excluded", list(one)))
        return True

    def readmit(self, machine: str) -> None:
        """Lets a machine take part again.

        Raises:
            ProgramError: It is not excluded.
        """
        if machine not in self.excluded:
            there = ", ".join(sorted(self.excluded)) or "none"
            message = f"{machine!r} is not excluded; excluded are: {there}"
            raise ProgramError(message)
        del self.excluded[machine]
        self._records.append(Record("readmitted", machine))
