"""When a job has ended, and what becomes of its pods then."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_cloud.kubernetes.job_spec import CleanPodPolicy
from drivetrain_cloud.kubernetes.job_status import (
    Verdict,
    count_failures,
    status_of,
    what_waits,
)
from drivetrain_cloud.kubernetes.operator_actions import delete_object
from drivetrain_cloud.kubernetes.plain_workers import (
    delete_pod,
    has_finished,
    those_of_role,
)
from drivetrain_cloud.kubernetes.pods import (
    controls,
    exit_words,
    has_condition,
    has_ended,
    has_gone,
    is_disrupted,
    is_leaving,
    is_terminating,
)
from drivetrain_cloud.spot.config import AfterMaxWait

if TYPE_CHECKING:
    from drivetrain_cloud.kubernetes.job_spec import JobSpec
    from drivetrain_cloud.kubernetes.observed import Observed
    from drivetrain_cloud.kubernetes.operator_actions import OperatorAction


class CleanUp(NamedTuple):
    """What becomes of a job that has ended.

    Attributes:
        actions: To be carried out.
        look_again_s: When to look again; infinite for never.
    """

    actions: list[OperatorAction]
    look_again_s: float


def end_of(observed: Observed, spec: JobSpec) -> Verdict:
    """Returns whether a job has ended, and how.

    It has succeeded when workers have, and none goes on. It has failed when training
    was ended as failed, or when workers have failed too often: those whose nodes were
    taken away do not count.

    Args:
        observed: The job and what belongs to it.
        spec: What it says.
    """
    workers = [pod for pod in those_of_role(observed, "worker") if not is_leaving(pod)]
    done = [pod for pod in workers if has_finished(pod)]
    live = [pod for pod in workers if not has_ended(pod)]
    if done and not live:
        message = f"{len(done)} workers have ended with success"
        failed = [pod for pod in workers if has_ended(pod, "Failed")]
        if failed := [pod for pod in failed if not is_disrupted(pod)]:
            first = failed[0]
            message += (
                f", and {len(failed)} have failed, {first['metadata']['name']} with "
                f"{exit_words(first)}"
            )
        return Verdict(phase="Succeeded", reason="JobSucceeded", message=message)
    view = observed.view
    if view is not None and view.ended and view.exit_code:
        message = f"training has ended with {view.exit_code}: {view.ended}"
        return Verdict(phase="Failed", reason="TrainingFailed", message=message)
    failures, _, words = count_failures(observed)
    if failures > spec.backoff_limit:
        message = (
            f"{failures} workers have failed, and backoffLimit is {spec.backoff_limit}; "
            f"the last one: {words or 'see the events'}"
        )
        return Verdict(phase="Failed", reason="BackoffLimitExceeded", message=message)
    return Verdict()


def clean_up(observed: Observed, spec: JobSpec, now_s: float) -> CleanUp:
    """Deletes what a job that has ended does not need, and the job itself in time.

    Args:
        observed: The job and what belongs to it.
        spec: What it says.
        now_s: The time.
    """
    job = observed.job
    actions: list[OperatorAction] = []
    for pod in observed.pods:
        keeps = spec.clean == CleanPodPolicy.NONE or (
            spec.clean == CleanPodPolicy.RUNNING and has_gone(pod)
        )
        if controls(job, pod) and not keeps and not is_terminating(pod):
            reason = f"the job has ended, and cleanPodPolicy is {spec.clean.value}"
            actions.append(delete_pod(pod, reason))
    ended_s = observed.in_s(status_of(job).get("completionTime"), now_s)
    due_s = (now_s if ended_s is None else ended_s) + spec.ttl_s
    if now_s >= due_s:
        reason = f"it ended {spec.ttl_s:g} s ago"
        actions.append(delete_object("ElasticJob", job, reason))
        due_s = math.inf
    return CleanUp(actions, due_s)


def end_of_wait(
    observed: Observed, spec: JobSpec, now_s: float
) -> tuple[Verdict, float]:
    """Returns what becomes of a job that has waited too long, and when to look again.

    It waits from its creation, its resumption, or since it last ran, as its status says,
    and not before it has made workers.

    Args:
        observed: The job and what belongs to it.
        spec: What it says.
        now_s: The time.
    """
    status = status_of(observed.job)
    if spec.is_decided or status.get("phase") not in {None, "Pending", "Waiting"}:
        return Verdict(), math.inf
    stamps = [observed.job["metadata"].get("creationTimestamp")] + [
        one.get("lastTransitionTime")
        for one in status.get("conditions") or ()
        if one["type"] in {"Running", "Suspended"}
    ]
    made = [
        pod["metadata"].get("creationTimestamp") or ""
        for pod in those_of_role(observed, "worker")
        if not has_ended(pod)
    ]
    if not made and not has_condition(observed.job, "Reconciled", "False"):
        return Verdict(), math.inf
    since = [observed.in_s(one, now_s) for one in (*stamps, min(made, default=""))]
    since_s = max((one for one in since if one is not None), default=now_s)
    # Stamps are cut off to whole seconds: it has waited for up to one less.
    due_s = since_s + spec.spot.max_wait_s + 1.0
    if now_s < due_s:
        return Verdict(), due_s
    message = (
        f"{spec.spot.least} workers have not come within {spec.spot.max_wait_s:g} s"
    )
    if words := what_waits(observed)[1]:
        message += f"; {words}"
    is_end = spec.spot.after_max_wait == AfterMaxWait.FAIL
    phase = "Failed" if is_end else "Suspended"
    return Verdict(phase=phase, reason="MaxWaitExceeded", message=message), math.inf
