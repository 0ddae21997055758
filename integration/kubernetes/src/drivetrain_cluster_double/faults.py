"""Faults of the server, to order: calls that fail, replies that are lost, streams cut."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from drivetrain_cluster_double.errors import (
    StatusError,
    conflict,
    expired,
    too_many_requests,
)
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_cluster_double.routes import Call

__all__ = ["Fault", "Faults", "fault_error"]


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
        if not (self.status or self.drop or self.delay_s):
            message = "a fault needs a status, drop or delay_s, got none of them"
            raise ProgramError(message)
        if self.status and not 400 <= self.status <= 599:
            message = f"the status of a fault lies from 400 to 599, got {self.status}"
            raise ProgramError(message)
        if self.when not in {"before", "after"}:
            message = f"a fault comes 'before' or 'after' the call, got {self.when!r}"
            raise ProgramError(message)
        if min(self.delay_s, self.after_events, self.skip, self.times - 1) < 0:
            message = (
                "delay_s, after_events and skip must be at least 0 and times at least "
                f"1, got {self.delay_s}, {self.after_events}, {self.skip}, {self.times}"
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
    match fault.status:
        case 409:
            return conflict(call.group, call.resource, call.name)
        case 410:
            return expired("The provided continue parameter is too old, or the version")
        case 429:
            message = (
                "the server has received too many requests and has asked us to wait"
            )
            return too_many_requests(message, fault.retry_after_s)
        case 503:
            message = "the server is currently unable to handle the request"
            return StatusError(
                503, "ServiceUnavailable", message, retry_after_s=fault.retry_after_s
            )
        case 500:
            message = "Internal error occurred: a fault was ordered"
            return StatusError(500, "InternalError", message)
    return StatusError(fault.status, "Unknown", "a fault was ordered")
