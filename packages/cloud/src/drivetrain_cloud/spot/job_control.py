"""What a supervisor sees of a training job, and what it may ask of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class HeardNotice(NamedTuple):
    """What a node's agent has heard.

    Attributes:
        remaining_s: After how many seconds the node may be gone.
        reason: What was said.
    """

    remaining_s: float
    reason: str


class NodeUse(NamedTuple):
    """What a node's agent and workers use.

    Attributes:
        cpus: Processors that they keep busy.
        memory_bytes: Memory that they hold.
    """

    cpus: float
    memory_bytes: int


class SaveResult(NamedTuple):
    """How a checkpoint that was asked for has ended.

    Attributes:
        request: Which one it was.
        step: What it holds.
        failure: Why there is none; empty if it is durable.
    """

    request: str
    step: int
    failure: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """A job at one moment.

    Args:
        present: Nodes whose agents are there.
        ready: Nodes whose workers can train, or do.
        training: Nodes that take part in steps.
        notices: What agents have heard, by node.
        uses: What nodes use, of those that have said so.
        step: The last step that was made.
        step_s: How long steps take; 0 while that is not known.
        step_samples: Samples of a step on all workers; 0 while that is not known.
        num_samples: Samples of all steps that count; 0 while that is not known.
        saved: How the last checkpoint that was asked for has ended; None if it has not.
        requested: Which checkpoint was asked for last; empty for none.
        admitted: Which nodes may train; None while nobody has said.
        reason: Why the nodes that train are what they are, for people.
        ended: Why the job has ended; empty while it goes on.
        exit_code: Of the job that has ended.
    """

    present: frozenset[str] = frozenset()
    ready: frozenset[str] = frozenset()
    training: frozenset[str] = frozenset()
    notices: Mapping[str, HeardNotice] = field(default_factory=dict)
    uses: Mapping[str, NodeUse] = field(default_factory=dict)
    step: int = 0
    step_s: float = 0.0
    step_samples: float = 0.0
    num_samples: float = 0.0
    saved: SaveResult | None = None
    requested: str = ""
    admitted: frozenset[str] | None = None
    reason: str = ""
    ended: str = ""
    exit_code: int = 0


class JobControl(Protocol):
    """Carries out what is decided about a training job.

    Every call may be repeated: what was done is not done again. Whoever cannot reach the
    job raises a `DistributedError`.
    """

    def look(self) -> JobView:
        """Returns how the job stands."""
        ...

    def admit(self, nodes: Iterable[str], reason: str) -> None:
        """Lets only these nodes train, from the end of a step on; none pauses the job.

        Args:
            nodes: Their names.
            reason: Why.
        """
        ...

    def save(self, request: str, within_s: float, reason: str) -> None:
        """Asks for a checkpoint at the end of a step.

        Args:
            request: A name for it that no other one has.
            within_s: In how many seconds it must be durable.
            reason: Why.
        """
        ...

    def leave(self, node: str, within_s: float, reason: str) -> None:
        """Lets a node leave at the end of a step.

        Args:
            node: Which one.
            within_s: After how many seconds its workers are ended.
            reason: Why.
        """
        ...

    def stop(self, reason: str, exit_code: int) -> None:
        """Ends the job.

        Args:
            reason: Why.
            exit_code: Of the job.
        """
        ...
