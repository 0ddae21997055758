"""What decisions ask for: plain data, each with its reason for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drivetrain_cloud.spot.capacity import Market


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """Something to do.

    Args:
        reason: Why.
    """

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Request(Action):
    """Asks the pool for nodes.

    Args:
        market: On what terms.
        count: How many.
    """

    market: Market
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel(Action):
    """Takes back a request.

    Args:
        node: The name of the request.
    """

    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Release(Action):
    """Gives back a node that does not train.

    Args:
        node: Which one.
    """

    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Leave(Action):
    """Takes a node out of training at the end of a step.

    Args:
        node: Which one.
        deadline_s: When it may be gone; infinite if nobody takes it away.
    """

    node: str
    deadline_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Save(Action):
    """Writes a checkpoint at the end of this step.

    Args:
        deadline_s: When it must be durable.
    """

    deadline_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Train(Action):
    """Lets exactly these nodes train, from the end of this step on.

    Args:
        nodes: Their names.
    """

    nodes: tuple[str, ...]


class Pause(Action):
    """Stops training; nodes are kept."""


class Suspend(Action):
    """Stops training, and gives back all nodes and requests."""


class Resume(Action):
    """Lets a suspended job wait for nodes again."""


class GiveUp(Action):
    """Ends the job as failed."""
