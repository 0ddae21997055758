"""What a job on nodes that may be taken away wants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from drivetrain_core import ProgramError


class Recovery(StrEnum):
    """What becomes of training when nodes are gone."""

    RESIZE = "resize"
    """It goes on with those that are left, and grows when others come."""

    WAIT_FULL = "wait-full"
    """It waits until all are there again."""


class AfterMaxWait(StrEnum):
    """What becomes of a job that has waited for nodes for too long."""

    FAIL = "fail"
    SUSPEND = "suspend"
    """All nodes are given back, until somebody resumes the job."""

    ON_DEMAND = "on-demand"
    """Nodes that cost more and are not taken away fill the gap until others come."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpotConfig:
    """What nodes a job wants, and what happens when they are not there.

    Args:
        nodes: Nodes that are asked for.
        min_nodes: Fewer do not train, with `Recovery.RESIZE`.
        max_nodes: Idle nodes of the pool are taken up to so many; `nodes` by default.
        unit: Training runs on a multiple of so many nodes.
        recovery: What happens when some are gone.
        tolerate: Nodes that may be missing, with `Recovery.WAIT_FULL`.
        max_wait_s: How long a job may not train for want of nodes.
        after_max_wait: What happens then.
        resume_after_s: After how long a suspended job asks for nodes again; infinite if
            only a person resumes it.
        settle_s: How long a node that came is watched before it takes part, and how
            long a first world waits for more.
        grow_after_s: The least time between a change of the world and one that only
            adds nodes.
        return_after_s: How long a spot node must have been ready before it takes the
            place of one on demand.
        margin_s: What is kept of each notice for what cannot be foreseen.

    Raises:
        ProgramError: The numbers contradict each other.

    Example:
        >>> SpotConfig(nodes=4, min_nodes=2).least
        2
        >>> SpotConfig(nodes=4, recovery=Recovery.WAIT_FULL, tolerate=1).least
        3
    """

    nodes: int
    min_nodes: int = 1
    max_nodes: int | None = None
    unit: int = 1
    recovery: Recovery = Recovery.RESIZE
    tolerate: int = 0
    max_wait_s: float = 600.0
    after_max_wait: AfterMaxWait = AfterMaxWait.FAIL
    resume_after_s: float = math.inf
    settle_s: float = 5.0
    grow_after_s: float = 30.0
    return_after_s: float = 300.0
    margin_s: float = 2.0

    def __post_init__(self) -> None:
        """Checks the fields."""
        most = self.most
        if not 1 <= self.min_nodes <= self.nodes <= most:
            message = (
                "a job needs 1 <= min_nodes <= nodes <= max_nodes, got "
                f"{self.min_nodes}, {self.nodes} and {most}"
            )
            raise ProgramError(message)
        if self.unit < 1 or self.nodes % self.unit or most % self.unit:
            message = (
                f"nodes and max_nodes must be multiples of the unit, got {self.nodes} "
                f"and {most} with a unit of {self.unit}"
            )
            raise ProgramError(message)
        if not 0 <= self.tolerate < self.nodes:
            message = (
                f"tolerate must be from 0 to {self.nodes - 1}, one less than the nodes "
                f"that are asked for; got {self.tolerate}"
            )
            raise ProgramError(message)
        for name in (
            "max_wait_s",
            "resume_after_s",
            "settle_s",
            "grow_after_s",
            "return_after_s",
            "margin_s",
        ):
            value = getattr(self, name)
            if not value >= 0:
                message = f"{name} must be a number of seconds from 0, got {value}"
                raise ProgramError(message)

    @property
    def most(self) -> int:
        """The most nodes that train together."""
        return self.nodes if self.max_nodes is None else self.max_nodes

    @property
    def least(self) -> int:
        """The least nodes that train together."""
        least = self.min_nodes
        if self.recovery == Recovery.WAIT_FULL:
            least = self.nodes - self.tolerate
        return -(-least // self.unit) * self.unit
