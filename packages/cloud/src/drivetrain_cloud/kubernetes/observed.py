"""What a reconciliation looks at, and what it remembers until the next one."""

from __future__ import annotations

import datetime as dt
import email.utils
from collections.abc import Mapping  # noqa: TC003
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cloud.kubernetes.pods import is_ready, role_of
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
        num_saves: How many checkpoints were asked for.
        order_s: When the one that is under way must be durable; None if none is.
        asked_s: When it was asked for.
        saved_s: When the last durable one was asked for.
        save_s: How long one takes.
        step_s: How long a step takes.
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
    num_saves: int = 0
    order_s: float | None = None
    asked_s: float = 0.0
    saved_s: float | None = None
    save_s: float = 5.0
    step_s: float = 1.0
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
        nodes: By name, those that its pods are on.
        has_secret: Whether its token is known.
        address: Of the service, as its secret says; empty while that is not known.
        view: What its master says; None if it says nothing.
        has_control: Whether it has a master that can be asked.
        master_error: Why a master that is ready does not answer; empty if it does.
        memory: Of the last time.
        offered: How many more workers the pool has room for.
        wanted_by_others: Pods of jobs of higher priority that find no node.
        is_held: Whether it takes no new node meanwhile, beyond its least.
        hold_until_s: Before when no failed worker is replaced.
        wall_s: The server's time, in seconds since 1970.
    """

    job: _Item
    pods: tuple[_Item, ...] = ()
    service: _Item | None = None
    nodes: Mapping[str, _Item] = field(default_factory=dict)
    has_secret: bool = False
    address: str = ""
    view: JobView | None = None
    has_control: bool = True
    master_error: str = ""
    memory: Memory = Memory()
    offered: int = 0
    wanted_by_others: int = 0
    is_held: bool = False
    hold_until_s: float = 0.0
    wall_s: float = 0.0

    @property
    def date(self) -> str:
        """The server's time, as in its answers."""
        return email.utils.formatdate(self.wall_s, usegmt=True)

    @property
    def master_uid(self) -> str:
        """Of the pod of the master that can be asked; empty for none."""
        pods = (pod for pod in self.pods if role_of(pod) == "master" and is_ready(pod))
        return next((pod["metadata"]["uid"] for pod in pods), "")

    def in_s(self, stamp: object, now_s: float) -> float | None:
        """Returns when a time is, on the clock of `now_s`; None if it is none.

        Args:
            stamp: As objects write it, `2026-11-30T12:00:00Z`.
            now_s: The time.

        Example:
            >>> Observed(job={}, wall_s=10.0).in_s("1970-01-01T00:00:12Z", 3.0)
            5.0
        """
        try:
            date = dt.datetime.fromisoformat(str(stamp))
            return now_s + date.timestamp() - self.wall_s
        except ValueError:
            return None

    def stamp(self, after_s: float = 0.0) -> str:
        """Returns the time after so many seconds, as objects write it."""
        date = dt.datetime.fromtimestamp(self.wall_s + after_s, dt.UTC)
        return date.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


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
