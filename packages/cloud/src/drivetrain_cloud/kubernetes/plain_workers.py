"""How many workers there are, where the master itself lets all of them train."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_cloud.kubernetes.operator_actions import (
    CreateObject,
    LetLeave,
    TellEvent,
    delete_object,
    patch_object,
)
from drivetrain_cloud.kubernetes.pod_templates import worker_pod
from drivetrain_cloud.kubernetes.pods import (
    LEAVE_BY,
    LEAVING,
    TOLD_BY,
    controls,
    has_condition,
    has_ended,
    is_disrupted,
    is_leaving,
    is_on_demand,
    is_pending_unscheduled,
    is_ready,
    is_terminating,
    number_of,
    phase_of,
    role_of,
)
from drivetrain_cloud.spot.capacity import Market

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from drivetrain_cloud.kubernetes.job_spec import JobSpec
    from drivetrain_cloud.kubernetes.observed import Observed
    from drivetrain_cloud.kubernetes.operator_actions import (
        DeleteObject,
        OperatorAction,
        PatchObject,
    )

LEAVE = "drivetrain.dev/leave"
"""An annotation of a job: the pods that leave, with commas between them."""

_PLACE_S = 10.0
_NO_ROOM_S = 300.0
MOST_AT_ONCE = 200
"""So many pods are made at a time: more come when these are seen."""

_Item = dict[str, "Any"]


class WorkerPlan(NamedTuple):
    """What becomes of the workers.

    Attributes:
        actions: To be carried out in this order.
        look_again_s: When to look again if nothing happens; infinite for never.
    """

    actions: list[OperatorAction]
    look_again_s: float = math.inf


def plan_workers(observed: Observed, spec: JobSpec, now_s: float) -> WorkerPlan:
    """Decides which workers are made, asked to leave, and deleted.

    Those that are too many, or named by `LEAVE`, are asked to leave first; their pods go
    when they have left. Those that are too few are made; the master lets them train when
    they are ready.

    Args:
        observed: The job and what belongs to it.
        spec: What it says.
        now_s: The time.
    """
    workers, here = those_of_role(observed, "worker"), present_workers(observed)
    named = _named(observed)
    left = [pod for pod in here if not is_leaving(pod)]
    staying = [pod for pod in left if pod["metadata"]["name"] not in named]
    target = _target(observed, spec, len(staying), len(workers) - len(staying))
    leavers, look_again_s = end_leavers(observed, spec, now_s)
    for pod in left:
        if pod["metadata"]["name"] in named:
            leavers.extend(ask_to_leave(observed, spec, pod, "it was named"))
    withdrawn, due_s = withdraw(observed, spec, now_s)
    plan = WorkerPlan([*leavers, *withdrawn], min(look_again_s, due_s))
    missing = 0 if withdrawn else target - len(staying)
    if any(map(has_finished, workers)):
        plan.actions.extend(end_pending(here))
    elif missing > 0:
        if now_s < observed.hold_until_s:
            until_s = min(plan.look_again_s, observed.hold_until_s)
            return plan._replace(look_again_s=until_s)
        plan.actions.extend(make_workers(observed, spec, missing))
    elif missing < 0:
        for pod in _first_to_go(staying)[:-missing]:
            reason = f"{len(staying)} workers are there, and {target} wanted"
            plan.actions.extend(ask_to_leave(observed, spec, pod, reason))
    return plan


def _target(observed: Observed, spec: JobSpec, num_here: int, num_going: int) -> int:
    """Returns how many workers there shall be."""
    unit = spec.spot.unit
    if observed.wanted_by_others > 0:
        yielded = max(0, observed.wanted_by_others - num_going)
        target = min(num_here, spec.max_replicas) - yielded
        return max(spec.spot.least, target // unit * unit)
    if observed.is_held:
        return max(spec.spot.least, min(num_here, spec.max_replicas))
    if num_here >= spec.replicas:
        room = (num_here + offered_now(observed)) // unit * unit
        return min(spec.max_replicas, max(spec.replicas, room))
    return spec.replicas


def offered_now(observed: Observed) -> int:
    """Returns how many more workers the pool has room for, as far as is known.

    Nodes that took none of the last ones are full of pods that are no job's.
    """
    since_s = observed.in_s((observed.job.get("status") or {}).get("noRoomTime"), 0.0)
    is_soon = since_s is not None and since_s > -_NO_ROOM_S
    return 0 if is_soon else observed.offered


def withdraw(
    observed: Observed, spec: JobSpec, now_s: float
) -> tuple[list[OperatorAction], float]:
    """Deletes workers beyond `replicas` that no node takes; returns when to look again.

    Whoever adds nodes for pods that wait would buy some for them.

    Args:
        observed: The job and what belongs to it.
        spec: What it says.
        now_s: The time.
    """
    # Those on demand stand in for workers that wait for spot nodes all the while.
    here = [pod for pod in present_workers(observed) if not is_on_demand(pod)]
    waits = [pod for pod in here if is_pending_unscheduled(pod)]
    actions: list[OperatorAction] = []
    look_again_s = math.inf
    for pod in sorted(waits, key=number_of)[: max(0, len(here) - spec.replicas)]:
        rows = pod["status"]["conditions"]
        stamp = next(one for one in rows if one["type"] == "PodScheduled")
        since_s = observed.in_s(stamp.get("lastTransitionTime"), now_s)
        due_s = (now_s if since_s is None else since_s) + _PLACE_S
        if now_s >= due_s:
            actions.append(delete_pod(pod, "no node is idle"))
        else:
            look_again_s = min(look_again_s, due_s)
    return actions, look_again_s


def make_workers(observed: Observed, spec: JobSpec, count: int) -> list[OperatorAction]:
    """Returns the actions that make so many workers, or the first of them."""
    assert observed.service is not None
    address = observed.service["spec"]["clusterIP"]
    first = next_number(observed)
    return [
        CreateObject(
            kind="Pod",
            item=worker_pod(observed.job, spec, number, Market.SPOT, address),
        )
        for number in range(first, first + min(count, MOST_AT_ONCE))
    ]


def _named(observed: Observed) -> set[str]:
    text = (observed.job["metadata"].get("annotations") or {}).get(LEAVE, "")
    return set(filter(None, text.split(",")))


def _first_to_go(pods: Sequence[_Item]) -> list[_Item]:
    return sorted(pods, key=lambda pod: (is_ready(pod), -number_of(pod)))


# ---- what decided jobs share ----


def those_of_role(observed: Observed, role: str) -> list[_Item]:
    """Returns the pods of a role that the job controls."""
    return [
        pod
        for pod in observed.pods
        if role_of(pod) == role and controls(observed.job, pod)
    ]


def present_workers(observed: Observed) -> list[_Item]:
    """Returns the workers that neither have ended nor are being deleted."""
    workers = those_of_role(observed, "worker")
    return [pod for pod in workers if not has_ended(pod) and not is_terminating(pod)]


def is_on_dead_node(observed: Observed, pod: _Item) -> bool:
    """Whether the node of a pod is gone, or has said nothing for long."""
    name = pod["spec"].get("nodeName")
    node = observed.nodes.get(name or "")
    return bool(name) and (node is None or not has_condition(node, "Ready"))


def next_number(observed: Observed) -> int:
    """Returns the first number that no worker of the job has had."""
    numbers = [number_of(pod) for pod in observed.pods if role_of(pod) == "worker"]
    last: int = (observed.job.get("status") or {}).get("lastPodNumber", -1)
    return max([-1, last, *numbers]) + 1


def has_finished(pod: _Item) -> bool:
    """Whether a worker has ended well, since training has.

    One that is asked to leave, or that somebody deletes, ends well too.
    """
    is_well = has_ended(pod, "Succeeded") and not is_disrupted(pod)
    return is_well and not is_leaving(pod) and not is_terminating(pod)


def end_pending(workers: Iterable[_Item]) -> list[OperatorAction]:
    """Returns the actions that delete workers which have not begun when training ends.

    They would wait for a node, and the job for them, for ever.

    Args:
        workers: Those that have not ended.
    """
    reason = "training ends before it has begun"
    return [delete_pod(pod, reason) for pod in workers if phase_of(pod) == "Pending"]


def delete_pod(pod: _Item, reason: str) -> DeleteObject:
    """Returns the action that deletes a pod."""
    return delete_object("Pod", pod, reason)


def ask_to_leave(
    observed: Observed, spec: JobSpec, pod: _Item, reason: str
) -> list[OperatorAction]:
    """Returns the actions that let a worker leave before its pod is deleted.

    It is written down first: an operator that begins anew asks again, and takes no worker
    that has left for one that has ended.

    Args:
        observed: The job and what belongs to it.
        spec: What it says.
        pod: Of the worker.
        reason: Why.
    """
    if not observed.has_control or not is_ready(pod):
        return [delete_pod(pod, reason)]
    data = pod["metadata"]
    return [
        _annotate(
            pod, {LEAVING: reason, LEAVE_BY: observed.stamp(spec.leave_s)}, reason
        ),
        TellEvent(reason="WorkerLeaves", note=f"{data['name']} leaves: {reason}"),
    ]


def _annotate(pod: _Item, notes: dict[str, str], reason: str) -> PatchObject:
    patch = {"metadata": {"uid": pod["metadata"]["uid"], "annotations": notes}}
    return patch_object("Pod", pod, patch, reason)


def end_leavers(
    observed: Observed, spec: JobSpec, now_s: float
) -> tuple[list[OperatorAction], float]:
    """Asks workers to leave, and deletes the pods of those that have, or take too long.

    Args:
        observed: The job and what belongs to it.
        spec: What it says.
        now_s: The time.

    Returns:
        The actions, and when to look again.
    """
    actions: list[OperatorAction] = []
    look_again_s = math.inf
    for pod in those_of_role(observed, "worker"):
        if not is_leaving(pod) or is_terminating(pod):
            continue
        name = pod["metadata"]["name"]
        seen = observed.memory.workers.get(name)
        since_s = seen.since_s if seen else now_s
        notes = pod["metadata"]["annotations"]
        due_s = observed.in_s(notes.get(LEAVE_BY), now_s)
        end_s = since_s + spec.leave_s if due_s is None else due_s
        if seen is not None and seen.notice is not None:
            end_s = min(end_s, seen.notice.deadline_s)
        if has_ended(pod):
            actions.append(delete_pod(pod, "it has left"))
        elif observed.view is not None and name not in observed.view.present:
            actions.append(delete_pod(pod, "the master says that it has left"))
        elif now_s >= end_s:
            reason = f"it has not left within {spec.leave_s:g} s"
            actions.append(delete_pod(pod, reason))
        else:
            look_again_s = min(look_again_s, end_s)
            if observed.view is not None and notes.get(TOLD_BY) != observed.master_uid:
                reason, told = notes[LEAVING], {TOLD_BY: observed.master_uid}
                actions.append(
                    LetLeave(pod=name, within_s=end_s - now_s, reason=reason)
                )
                actions.append(_annotate(pod, told, reason))
    return actions, look_again_s
