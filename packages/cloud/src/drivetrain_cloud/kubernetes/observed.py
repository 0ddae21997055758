"""What a reconciliation looks at, and what it remembers until the next one."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cloud.spot.capacity import JobPhase, NodePhase, Notice

if TYPE_CHECKING:
    from drivetrain_cloud.kubernetes.operator_actions import OperatorAction
    from drivetrain_cloud.spot.job_control import JobView
    from drivetrain_cloud.spot.worker_resources import UseWindow

_Item = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What is remembered of a worker.

    Args:
        phase: What it was doing.
        since_s: Since when.
        notice: That it will be taken away, if that was said.
    """

    phase: NodePhase
    since_s: float
    notice: Notice | None = None


class RoleEnd(NamedTuple):
    """How a pod that is no worker has failed.

    Attributes:
        uid: Of the last one that has.
        times: How often one of its name has, one soon after the other.
        until_s: Until when it is not replaced.
    """

    uid: str
    times: int
    until_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What is remembered of a job; an operator that begins knows none of it.

    Nothing goes wrong without it: waits begin anew, and that is all. Times are of the
    operator's monotonic clock.

    Args:
        uid: Of the job.
        nonce: Tells this operator's requests from those of another one.
        phase: What the job was doing.
        phase_since_s: Since when.
        changed_s: When the workers that train last became others.
        admitted: Who was let train; None while that is not known.
        workers: By the name of their pods.
        asked: Workers that were asked to leave.
        num_saves: How many checkpoints were asked for.
        order_s: When the one that is under way must be durable; None if none is.
        asked_s: When it was asked for.
        saved_s: When the last durable one was asked for.
        save_s: How long one takes.
        step_s: How long a step takes.
        hold_until_s: Before when no failed worker is replaced.
        ended_s: When the job was first seen to have ended.
        role_ends: Failures of pods that are no workers, by their names.
        use_since_s: When the window of use began that is not closed.
        use_samples: Processors and bytes that a worker has used in it, each time.
        use_windows: Those that are closed, since requests last changed.
    """

    uid: str = ""
    nonce: str = ""
    phase: JobPhase = JobPhase.WAITING
    phase_since_s: float = 0.0
    changed_s: float = 0.0
    admitted: frozenset[str] | None = None
    workers: Mapping[str, Seen] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
    num_saves: int = 0
    order_s: float | None = None
    asked_s: float = 0.0
    saved_s: float | None = None
    save_s: float = 5.0
    step_s: float = 1.0
    hold_until_s: float = 0.0
    ended_s: float | None = None
    role_ends: Mapping[str, RoleEnd] = field(default_factory=dict)
    use_since_s: float = 0.0
    use_samples: tuple[tuple[float, int], ...] = ()
    use_windows: tuple[UseWindow, ...] = ()

    @property
    def request(self) -> str:
        """The name of the checkpoint that was asked for last."""
        return f"{self.nonce}-{self.num_saves}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """A job and all that belongs to it at one moment.

    Args:
        job: The ElasticJob.
        pods: Those that carry its labels, whoever owns them.
        service: Of its master, if it is there.
        has_group: Whether what tells a gang scheduler of it was made.
        nodes: By name, those that its pods are on.
        has_secret: Whether its token is known.
        address: Of the service, as its secret says; empty while that is not known.
        view: What its master says; None if it says nothing.
        has_control: Whether it has a master that can be asked.
        memory: Of the last time.
        offered: How many more workers the pool has room for.
        wanted_by_others: Pods of jobs of higher priority that find no node.
        date: The server's time, as in its answers.
    """

    job: _Item
    pods: tuple[_Item, ...] = ()
    service: _Item | None = None
    has_group: bool = False
    nodes: Mapping[str, _Item] = field(default_factory=dict)
    has_secret: bool = False
    address: str = ""
    view: JobView | None = None
    has_control: bool = True
    memory: Memory = Memory()
    offered: int = 0
    wanted_by_others: int = 0
    date: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is to be done.

    Args:
        actions: To be carried out in this order.
        memory: For the next time, if all of them could be carried out.
        look_again_s: When to look again if nothing happens; infinite for never.
    """

    actions: tuple[OperatorAction, ...]
    memory: Memory
    look_again_s: float
