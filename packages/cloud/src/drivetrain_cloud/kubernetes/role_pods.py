"""Which pods of roles besides the workers are made and deleted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cloud.kubernetes.observed import RoleEnd
from drivetrain_cloud.kubernetes.operator_actions import CreateObject
from drivetrain_cloud.kubernetes.plain_workers import (
    MOST_AT_ONCE,
    delete_pod,
    those_of_role,
)
from drivetrain_cloud.kubernetes.pod_templates import role_pod
from drivetrain_cloud.kubernetes.pods import (
    controls,
    exit_words,
    has_ended,
    is_terminating,
    number_of,
    role_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_cloud.kubernetes.job_spec import JobSpec, RoleSpec
    from drivetrain_cloud.kubernetes.observed import Observed
    from drivetrain_cloud.kubernetes.operator_actions import OperatorAction

_MOST_HOLD_S = 60.0
_FORGET_S = 600.0
_Item = dict[str, Any]


class RolePlan(NamedTuple):
    """What becomes of pods that are no workers.

    Attributes:
        actions: To be carried out.
        ends: Their failures, for the next time.
        look_again_s: When to look again if nothing happens; infinite for never.
    """

    actions: list[OperatorAction]
    ends: Mapping[str, RoleEnd]
    look_again_s: float


def hold_s(failures: int) -> float:
    """Returns how long what has failed so often is not replaced.

    Example:
        >>> [hold_s(failures) for failures in (1, 2, 3, 4, 9999)]
        [0.0, 1.0, 2.0, 4.0, 60.0]
    """
    return min(_MOST_HOLD_S, 2.0 ** min(failures - 2, 10)) if failures > 1 else 0.0


def plan_roles(observed: Observed, spec: JobSpec, now_s: float) -> RolePlan:
    """Decides which pods of roles are made and deleted.

    One that has failed stays until it may be replaced: later and later, while it fails
    again and again.

    Args:
        observed: The job and what belongs to it.
        spec: What it says.
        now_s: The time.
    """
    plan = RolePlan([], dict(observed.memory.role_ends), math.inf)
    for role in spec.roles:
        plan = _plan_role(plan, observed, spec, role, now_s)
    known = {role.name for role in spec.roles} | {"worker", "master"}
    for pod in observed.pods:
        is_ours = controls(observed.job, pod)
        if role_of(pod) not in known and is_ours and not is_terminating(pod):
            plan.actions.append(delete_pod(pod, "the job has no such role"))
    return plan


def _plan_role(
    plan: RolePlan, observed: Observed, spec: JobSpec, role: RoleSpec, now_s: float
) -> RolePlan:
    assert observed.service is not None
    address = observed.service["spec"]["clusterIP"]
    actions, ends, look_again_s = list(plan.actions), dict(plan.ends), plan.look_again_s
    pods = {number_of(pod): pod for pod in those_of_role(observed, role.name)}
    missing = [number for number in range(role.replicas) if number not in pods]
    for number in missing[:MOST_AT_ONCE]:
        item = role_pod(observed.job, spec, role, number, address)
        actions.append(CreateObject(kind="Pod", item=item))
    for number, pod in sorted(pods.items()):
        name = pod["metadata"]["name"]
        if is_terminating(pod):
            continue
        if not 0 <= number < role.replicas:
            reason = f"{role.replicas} replicas of {role.name} are wanted"
            actions.append(delete_pod(pod, reason))
            ends.pop(name, None)
        elif has_ended(pod, "Failed"):
            end = ends[name] = _end(pod, ends.get(name), now_s)
            if now_s >= end.until_s:
                actions.append(delete_pod(pod, exit_words(pod)))
            else:
                look_again_s = min(look_again_s, end.until_s)
    return RolePlan(actions, ends, look_again_s)


def _end(pod: _Item, before: RoleEnd | None, now_s: float) -> RoleEnd:
    uid = pod["metadata"]["uid"]
    if before is not None and before.uid == uid:
        return before
    is_soon = before is not None and now_s < before.until_s + _FORGET_S
    count = before.times + 1 if before is not None and is_soon else 1
    return RoleEnd(uid, count, now_s + hold_s(count))
