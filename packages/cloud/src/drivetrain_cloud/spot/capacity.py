"""What nodes a job has, and what it is doing: all that decisions look at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Market(StrEnum):
    """On what terms a node is there."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


class NodePhase(StrEnum):
    """What a node of a job is doing; one that is gone is not listed.

    requested ---> ready ---> training ---> leaving ---> ready, or gone
    """

    REQUESTED = "requested"
    READY = "ready"
    TRAINING = "training"
    LEAVING = "leaving"


class JobPhase(StrEnum):
    """What a job is doing."""

    WAITING = "waiting"
    TRAINING = "training"
    SUSPENDED = "suspended"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """A node will be taken away.

    Args:
        heard_s: When that became known.
        deadline_s: When the node may be gone.
    """

    heard_s: float
    deadline_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node that a job has, or has asked for.

    Args:
        name: Which one; a request has a name of its own.
        market: On what terms.
        phase: What it is doing.
        since_s: Since when.
        notice: That it will be taken away, if that was said.
        offer: What a list of prices calls its kind.
    """

    name: str
    market: Market
    phase: NodePhase
    since_s: float
    notice: Notice | None = None
    offer: str = ""

    @property
    def is_able(self) -> bool:
        """Whether it can take part in training from now on."""
        there = self.phase in {NodePhase.READY, NodePhase.TRAINING}
        return there and self.notice is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """A job and its nodes at one moment; times are of one monotonic clock.

    Args:
        nodes: All that it has or has asked for.
        phase: What it is doing.
        phase_since_s: Since when.
        changed_s: When the nodes that train last became others.
        offered: Idle nodes of the pool that nobody asked for.
        is_saving: Whether a checkpoint is being written.
        saved_s: When the last durable checkpoint was begun; None without one.
        step_s: How long a step takes.
        save_s: How long a checkpoint takes until it is durable.
    """

    nodes: tuple[Node, ...] = ()
    phase: JobPhase = JobPhase.WAITING
    phase_since_s: float = 0.0
    changed_s: float = 0.0
    offered: int = 0
    is_saving: bool = False
    saved_s: float | None = None
    step_s: float = 1.0
    save_s: float = 5.0

    def those(self, *phases: NodePhase) -> tuple[Node, ...]:
        """Returns the nodes in some phases."""
        return tuple(node for node in self.nodes if node.phase in phases)
