"""What an ElasticJob says, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.quantities import read_quantity
from drivetrain_cloud.kubernetes.template_form import check_template
from drivetrain_cloud.spot.config import AfterMaxWait, Recovery, SpotConfig
from drivetrain_cloud.spot.worker_resources import ResourceBounds, Resources
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Mapping

_RECOVERY = {"Resize": Recovery.RESIZE, "WaitFull": Recovery.WAIT_FULL}
_AFTER = {
    "Fail": AfterMaxWait.FAIL,
    "Suspend": AfterMaxWait.SUSPEND,
    "OnDemand": AfterMaxWait.ON_DEMAND,
}


class CleanPodPolicy(StrEnum):
    """Which pods go when a job has ended."""

    ALL = "All"
    RUNNING = "Running"
    NONE = "None"


class Gang(StrEnum):
    """By whose means the pods of a job wait for each other."""

    NONE = "None"
    VOLCANO = "Volcano"
    KUEUE = "Kueue"


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleSpec:
    """Replicas besides the workers.

    Args:
        name: Of the role, as `evaluator`.
        replicas: How many.
        template: Of their pods.
    """

    name: str
    replicas: int
    template: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec:
    """What a job wants.

    Args:
        spot: What nodes it wants, and what happens when they are not there.
        is_spot: Whether workers run on spot nodes while there are any.
        is_decided: Whether the operator says which workers train; the master does
            otherwise, with all that are there.
        heeds_notices: Whether notices are answered.
        max_replicas: Idle nodes are taken up to so many.
        template: Of a worker's pod.
        master_template: Of the master's pod; empty for that of a worker.
        journal: Where the master keeps it.
        roles: Replicas besides the workers.
        spot_selector: Labels of spot nodes.
        on_demand_selector: Labels of the others.
        is_suspended: Whether all pods are given back.
        priority: Of two jobs on one pool, the lower one yields.
        clean: Which pods go in the end.
        backoff_limit: Failures of workers until the job fails.
        ttl_s: After how long a job that has ended is deleted; infinite for never.
        leave_s: How long a worker may take to leave.
        gang: By whose means pods wait for each other.
        queue: Of the gang scheduler.
        fit: Within what bounds requests of workers follow what they use; None for not.
        fitted: What they ask for, for the status; None while that follows nothing.
    """

    spot: SpotConfig
    is_spot: bool
    is_decided: bool
    heeds_notices: bool
    max_replicas: int
    template: Mapping[str, Any]
    master_template: Mapping[str, Any]
    journal: str
    roles: tuple[RoleSpec, ...]
    spot_selector: Mapping[str, str]
    on_demand_selector: Mapping[str, str]
    is_suspended: bool
    priority: int
    clean: CleanPodPolicy
    backoff_limit: int
    ttl_s: float
    leave_s: float
    gang: Gang
    queue: str
    fit: ResourceBounds | None = None
    fitted: Mapping[str, Any] | None = None

    @property
    def replicas(self) -> int:
        """Workers that are asked for."""
        return self.spot.nodes


def parse_job(item: Mapping[str, Any]) -> JobSpec:
    """Returns what an ElasticJob says.

    The API server has checked it by the definition of the kind; what that cannot say is
    checked here.

    Args:
        item: As the API server gives it.

    Raises:
        ProgramError: It contradicts itself.

    Example:
        >>> pod = {"spec": {"containers": [{"name": "worker"}]}}
        >>> job = parse_job({"spec": {"replicas": 4, "template": pod}})
        >>> job.replicas, job.max_replicas, job.backoff_limit
        (4, 4, 6)
    """
    spec = item["spec"]
    spot = spec.get("spot") or {}
    policy = spec.get("runPolicy") or {}
    master = spec.get("master") or {}
    unit = spec.get("nodeUnit", 1)
    replicas = spec["replicas"]
    most = spec.get("maxReplicas", replicas)
    ttl = policy.get("ttlSecondsAfterFinished")
    check_template(spec["template"], "spec.template")
    if master.get("template"):
        check_template(master["template"], "spec.master.template")
    for role in spec.get("roles") or ():
        check_template(role["template"], f"spec.roles[{role['name']}].template")
    is_decided = spot.get("enabled", False) or unit > 1
    after = spot.get("afterMaxWait", "Fail")
    if after == "OnDemand" and not is_decided:
        message = "afterMaxWait OnDemand needs spot.enabled: there are no other nodes"
        raise ProgramError(message)
    try:
        config = SpotConfig(
            nodes=replicas,
            min_nodes=spec.get("minReplicas", min(unit, replicas)),
            max_nodes=most,
            unit=unit,
            recovery=_RECOVERY[spot.get("recovery", "Resize")],
            tolerate=spot.get("tolerate", 0),
            max_wait_s=spot.get("maxWaitSeconds", 600 if is_decided else math.inf),
            after_max_wait=_AFTER[after],
            settle_s=spot.get("settleSeconds", 5),
            grow_after_s=spot.get("growAfterSeconds", 30),
            return_after_s=spot.get("returnAfterSeconds", 300),
        )
        return JobSpec(
            spot=config,
            is_spot=spot.get("enabled", False),
            is_decided=is_decided,
            heeds_notices=spot.get("onNotice", "SaveAndLeave") != "Ignore",
            max_replicas=most,
            template=spec["template"],
            master_template=master.get("template") or {},
            journal=master.get("journal", ""),
            roles=tuple(
                RoleSpec(
                    name=one["name"], replicas=one["replicas"], template=one["template"]
                )
                for one in spec.get("roles") or ()
            ),
            spot_selector=spot.get("nodeSelector") or {},
            on_demand_selector=spot.get("onDemandNodeSelector") or {},
            is_suspended=spec.get("suspend", False),
            priority=spec.get("priority", 0),
            clean=CleanPodPolicy(policy.get("cleanPodPolicy", "Running")),
            backoff_limit=policy.get("backoffLimit", 6),
            ttl_s=math.inf if ttl is None else ttl,
            leave_s=policy.get("leaveSeconds", 60),
            gang=Gang(policy.get("gang", "None")),
            queue=policy.get("queueName", ""),
            fit=_bounds(spec["fitResources"]) if spec.get("fitResources") else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ProgramError):
            raise
        message = f"the spec has something that is not known: {error!r}"
        raise ProgramError(message) from error


def _bounds(item: Mapping[str, Any]) -> ResourceBounds:
    least, most = read_resources(item["min"]), read_resources(item["max"])
    return ResourceBounds(least=least, most=most)


def read_resources(item: Mapping[str, Any]) -> Resources:
    """Returns the CPUs and the memory that an object names as quantities."""
    return Resources(
        cpus=read_quantity(item["cpu"]),
        memory_bytes=int(read_quantity(item["memory"])),
    )
