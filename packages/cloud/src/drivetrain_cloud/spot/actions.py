"""What decisions ask for: plain data, each with its reason for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drivetrain_cloud.spot.capacity import Market


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Asks the pool for nodes.

    Args:
        market: On what terms.
        count: How many.
        reason: Why.
    """

    market: Market
    count: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel:
    """Takes back a request.

    Args:
        node: The name of the request.
        reason: Why.
    """

    node: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """Gives back a node that does not train.

    Args:
        node: Which one.
        reason: Why.
    """

    node: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Leave:
    """Takes a node out of training at the end of a step.

    Args:
        node: Which one.
        deadline_s: When it may be gone; infinite if nobody takes it away.
        reason: Why.
    """

    node: str
    deadline_s: float
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Save:
    """Writes a checkpoint at the end of this step.

    Args:
        deadline_s: When it must be durable.
        reason: Why.
    """

    deadline_s: float
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Train:
    """Lets exactly these nodes train, from the end of this step on.

    Args:
        nodes: Their names.
        reason: Why.
    """

    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """Stops training; nodes are kept.

    Args:
        reason: Why.
    """

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspend:
    """Stops training, and gives back all nodes and requests.

    Args:
        reason: Why.
    """

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
    """Lets a suspended job wait for nodes again.

    Args:
        reason: Why.
    """

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """Ends the job as failed.

    Args:
        reason: Why.
    """

    reason: str


Action = (
    Request
    | Cancel
    | Release
    | Leave
    | Save
    | Train
    | Pause
    | Suspend
    | Resume
    | GiveUp
)
