"""Faults of the server, to order: calls that fail, replies that are lost, streams cut."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from drivetrain_cluster_double.errors import StatusError, conflict
from drivetrain_cluster_double.routes import Call
from drivetrain_core import ProgramError


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What goes wrong with some calls.

    Args:
        verb: Of the calls, as roles name it: `get`, `list`, `watch`, `create`, `update`,
            `patch`, `delete`; empty for all.
        resource: Of the calls, as `pods` or `jobs/status`; empty for all.
        name: Of the object; empty for all.
        user_agent: What the caller's begins with; empty for all.
        status: Answer with it: 409, 410, 429, 500, 503 ...; 0 for none.
        retry_after_s: What a 429 or a 503 says.
        drop: Whether to close the connection without an answer.
        delay_s: Wait so long before the call is looked at.
        when: `before` to do nothing else, `after` to do what was asked first.
        after_events: Of a watch: it goes wrong when so many events were sent.
        skip: How many calls to let pass first.
        times: How many calls go wrong.

    Raises:
        ProgramError: Nothing would go wrong, or a number is out of range.

    Example:
        >>> fault = Fault(verb="patch", resource="pods/status", status=409, times=2)
        >>> fault.when, fault.skip
        ('before', 0)
    """

    verb: str = ""
    resource: str = ""
    name: str = ""
    user_agent: str = ""
    status: int = 0
    retry_after_s: int = 1
    drop: bool = False
    delay_s: float = 0.0
    when: Literal["before", "after"] = "before"
    after_events: int = 0
    skip: int = 0
    times: int = 1

    def __post_init__(self) -> None:
        """Checks the fault."""
        counts = (self.delay_s, self.after_events, self.skip, self.times - 1)
        is_known = self.when in {"before", "after"} and self.status in (
            0,
            *range(400, 600),
        )
        if (
            not (self.status or self.drop or self.delay_s)
            or min(counts) < 0
            or not is_known
        ):
            message = (
                "a fault has a status from 400 to 599, drop or delay_s, comes 'before' or "
                f"'after' the call, and at least once, got {self}"
            )
            raise ProgramError(message)

    def fits(self, call: Call) -> bool:
        """Whether it is meant for a call."""
        return (
            self.verb in {"", call.verb}
            and self.resource in {"", call.target}
            and self.name in {"", call.name}
            and call.user_agent.startswith(self.user_agent)
        )


class Faults:
    """The faults that wait for their calls; for any thread.

    Attributes:
        hook: Called with each call, from the server's thread; returns a fault, or None.
            It is asked before the faults that were added.

    Example:
        >>> from drivetrain_cluster_double.routes import Call
        >>> faults = Faults()
        >>> faults.add(Fault(verb="list", status=500, skip=1))
        >>> call = Call("list", "", "v1", "pods")
        >>> [bool(faults.take(call)) for _ in range(3)]
        [False, True, False]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Fault, list[int]]] = []
        self.hook: Callable[[Call], Fault | None] | None = None

    def add(self, fault: Fault) -> None:
        """Lets something go wrong."""
        with self._lock:
            self._waiting.append((fault, [fault.skip, fault.times]))

    def clear(self) -> None:
        """Lets nothing go wrong any more."""
        with self._lock:
            self._waiting.clear()

    @property
    def num_waiting(self) -> int:
        """How many faults have not gone wrong as often as they are to."""
        with self._lock:
            return len(self._waiting)

    def take(self, call: Call) -> Fault | None:
        """Returns what goes wrong with a call, or None."""
        found = self.hook(call) if self.hook is not None else None
        if found is not None:
            return found
        with self._lock:
            for entry in self._waiting:
                fault, counts = entry
                if not fault.fits(call):
                    continue
                if counts[0] > 0:
                    counts[0] -= 1
                    continue
                counts[1] -= 1
                if counts[1] == 0:
                    self._waiting.remove(entry)
                return fault
        return None


def fault_error(fault: Fault, call: Call) -> StatusError:
    """Returns the answer that a fault orders."""
    if fault.status == 409:
        return conflict(call.group, call.resource, call.name)
    reason, message = _ANSWERS.get(fault.status, ("Unknown", "a fault was ordered"))
    retry_s = fault.retry_after_s if fault.status in {429, 503} else None
    return StatusError(fault.status, reason, message, retry_after_s=retry_s)


_ANSWERS = {
    403: ("Forbidden", "a fault was ordered"),
    410: ("Expired", "The provided continue parameter is too old, or the version"),
    429: ("TooManyRequests", "the server has received too many requests"),
    500: ("InternalError", "Internal error occurred: a fault was ordered"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
}
