"""What follows from a failure: the smallest thing first that may help, then the next.

    restart in place -> restart the process -> replace the node -> stop the job

How often each is tried, for each class of failures, is one table. What a class of its own
makes worse is left out of its ladder: an error of the program stops the job at once, since
it comes again wherever it runs, and hardware that has failed is not tried again.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import ProgramError
from drivetrain_health.failures._failure_class import FailureClass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_health.failures._diagnosis import Diagnosis


class Action(StrEnum):
    """What is done about a failure."""

    #: Processes live on, and make a new world of those that are left.
    RESTART_IN_PLACE = "restart-in-place"
    #: Another process takes the place of the one that failed, on the same node.
    RESTART_PROCESS = "restart-process"
    #: The node is left out, and another one takes its place.
    REPLACE_NODE = "replace-node"
    #: All end, and a person has to look.
    STOP_JOB = "stop-job"


class Ladder(NamedTuple):
    """How often each action is tried within the window, one after the other.

    Attributes:
        in_place: Restarts in place, on a node.
        process: Restarts of the process, on a node.
        nodes: Nodes that are replaced, in the job; None for as many as there are. Then
            the job is stopped.
    """

    in_place: int
    process: int
    nodes: int | None = None


_ROWS = tomllib.loads(files(__package__).joinpath("ladders.toml").read_text())

#: How often each action is tried, by class or, where there is one, by cause.
LADDERS: Mapping[str, Ladder] = MappingProxyType(
    {name: Ladder(*row) for name, row in _ROWS.items()}
)

# The same crash, or unknown error, on several nodes at the same place of the program is
# the program's.
_OF_THE_PROGRAM = frozenset(
    {FailureClass.CRASH, FailureClass.HANG, FailureClass.UNKNOWN}
)


class Incident(NamedTuple):
    """A failure that is over, and what was done about it.

    Attributes:
        at_s: When, on the clock of the master.
        failure_class: What kind of failure it was.
        cause: What exactly.
        node: Which node was to blame; empty for none.
        worker: Where it was seen.
        action: What was done.
        place: Where the program was; empty if that is not known.
    """

    at_s: float
    failure_class: FailureClass
    cause: str
    node: str
    worker: str
    action: Action
    place: str = ""


class Response(NamedTuple):
    """What `respond` decided.

    Attributes:
        action: What is done.
        reason: Why, for people.
    """

    action: Action
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponseConfig:
    """How much patience there is with failures.

    Args:
        window_s: How long a failure counts: a training of months sees the same again.
        ladders: How often each action is tried, by class or by cause; `LADDERS` with some
            of them replaced.
        same_place_nodes: On how many nodes a program crashes, or hangs, at the same place
            until it is taken for the program's own fault.
        same_place_apart_s: How long after each other that has to happen. What stalls
            several nodes at once, as a disk that all share, is no proof of the program.
        blameless: How many restarts there are for failures of a class for which no node
            can be blamed, beyond those of its ladder.

    Raises:
        ProgramError: A number is too small, or a class has no ladder.
    """

    window_s: float = 3600.0
    ladders: Mapping[str, Ladder] = field(default_factory=lambda: LADDERS)
    same_place_nodes: int = 2
    same_place_apart_s: float = 60.0
    blameless: int = 5

    def __post_init__(self) -> None:
        """Checks the numbers."""
        apart_s, nodes = self.same_place_apart_s, self.same_place_nodes
        for is_right, rule in (
            (self.window_s > 0, f"window_s must be more than 0 seconds, got {self.window_s}"),
            (0 <= apart_s < math.inf,
             f"same_place_apart_s must be a number of seconds from 0, got {apart_s}"),
            (nodes >= 2,
             f"same_place_nodes must be at least 2, got {nodes}"),
            (self.blameless >= 0,
             f"blameless must be at least 0, got {self.blameless}"),
        ):  # fmt: skip
            if not is_right:
                raise ProgramError(rule)
        if missing := [one.value for one in FailureClass if one not in self.ladders]:
            message = (
                f"each class needs a ladder, there is none for {', '.join(missing)}"
            )
            raise ProgramError(message)
        for name, ladder in self.ladders.items():
            if min(ladder.in_place, ladder.process, ladder.nodes or 0) < 0:
                message = f"the ladder of {name} has a number below 0: {ladder}"
                raise ProgramError(message)


def respond(
    now_s: float,
    diagnosis: Diagnosis,
    past: Sequence[Incident],
    config: ResponseConfig | None = None,
) -> Response:
    """Decides what follows from a failure.

    Args:
        now_s: The time, on the master's clock.
        diagnosis: Of the failure, as `root_cause` returns it.
        past: The failures before it, in any order.
        config: How much patience there is; None for that of the table.

    Example:
        >>> from drivetrain_health.failures import Diagnosis
        >>> reset = Diagnosis(FailureClass.INTERCONNECT, "link-down", "n7", "is down")
        >>> past = []
        >>> for now_s in (0.0, 10.0, 20.0):
        ...     action, _ = respond(now_s, reset, past)
        ...     past.append(Incident(now_s, *reset[:3], "n7/0", action))
        >>> [one.action.value for one in past]
        ['restart-in-place', 'restart-process', 'replace-node']
    """
    config = config or ResponseConfig()
    key, ladder = _ladder_of(diagnosis.failure_class, diagnosis.cause, config)
    recent = [one for one in past if one.at_s > now_s - config.window_s]
    what = f"{diagnosis.failure_class}: {diagnosis.cause}"
    if (
        nodes := _same_place(now_s, diagnosis, recent, config)
    ) >= config.same_place_nodes:
        reason = f"{what} at {diagnosis.place} on {nodes} nodes: it is the program"
        return Response(Action.STOP_JOB, reason)
    same = [
        one
        for one in recent
        if _ladder_of(one.failure_class, one.cause, config)[0] == key
    ]
    if not diagnosis.node:
        return _without_node(what, ladder, same, config)
    here = _since_replaced(diagnosis.node, same)
    for action, most in (
        (Action.RESTART_IN_PLACE, ladder.in_place),
        (Action.RESTART_PROCESS, ladder.process),
    ):
        used = sum(one.action == action for one in here)
        if used < most:
            return Response(action, f"{what} on {diagnosis.node}, {used + 1} of {most}")
    replaced = sum(one.action == Action.REPLACE_NODE for one in same)
    if ladder.nodes is None or replaced < ladder.nodes:
        again = f", {len(here) + 1} times" if here else ""
        reason = f"{what} on {diagnosis.node}{again}"
        return Response(Action.REPLACE_NODE, reason)
    return Response(Action.STOP_JOB, _exhausted(what, ladder, same, config))


def _ladder_of(
    failure_class: FailureClass, cause: str, config: ResponseConfig
) -> tuple[str, Ladder]:
    """Returns which ladder a failure is on, and the ladder."""
    key = cause if cause in config.ladders else failure_class.value
    return key, config.ladders[key]


def _same_place(
    now_s: float,
    diagnosis: Diagnosis,
    recent: Sequence[Incident],
    config: ResponseConfig,
) -> int:
    """Returns on how many nodes, one after the other, the program has failed there."""
    if diagnosis.failure_class not in _OF_THE_PROGRAM or not diagnosis.place:
        return 0
    this = (diagnosis.failure_class, diagnosis.cause, diagnosis.place)
    nodes, last_s = {diagnosis.node} - {""}, now_s
    for one in sorted(recent, key=lambda one: one.at_s, reverse=True):
        is_this = (one.failure_class, one.cause, one.place) == this
        is_apart = last_s - one.at_s >= config.same_place_apart_s
        if is_this and is_apart and one.node and one.node not in nodes:
            nodes.add(one.node)
            last_s = one.at_s
    return len(nodes)


def _since_replaced(node: str, same: Sequence[Incident]) -> list[Incident]:
    """Returns what happened on a node since another machine has taken its name."""
    here = sorted((one for one in same if one.node == node), key=lambda one: one.at_s)
    last = max(
        (at for at, one in enumerate(here) if one.action == Action.REPLACE_NODE),
        default=-1,
    )
    return here[last + 1 :]


def _without_node(
    what: str, ladder: Ladder, same: Sequence[Incident], config: ResponseConfig
) -> Response:
    """Decides about a failure that no node can be blamed for."""
    same = [one for one in same if not one.node]
    in_place = sum(one.action == Action.RESTART_IN_PLACE for one in same)
    if in_place < ladder.in_place:
        reason = f"{what}, {in_place + 1} of {ladder.in_place}"
        return Response(Action.RESTART_IN_PLACE, reason)
    most = ladder.process
    if ladder.nodes != 0:
        most += config.blameless
    used = sum(one.action == Action.RESTART_PROCESS for one in same)
    if used < most:
        return Response(Action.RESTART_PROCESS, f"{what}, {used + 1} of {most}")
    return Response(Action.STOP_JOB, _exhausted(what, ladder, same, config))


def _exhausted(
    what: str, ladder: Ladder, same: Sequence[Incident], config: ResponseConfig
) -> str:
    if ladder == Ladder(0, 0, 0):
        return f"{what}, which comes again wherever it runs"
    return (
        f"{what}, {len(same) + 1} times within {config.window_s:g} s, and all that may "
        "help was tried"
    )
