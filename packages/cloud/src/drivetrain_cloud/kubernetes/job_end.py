"""When a job has ended, and what becomes of its pods then."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_cloud.kubernetes.job_spec import CleanPodPolicy
from drivetrain_cloud.kubernetes.job_status import Verdict, count_failures
from drivetrain_cloud.kubernetes.operator_actions import delete_object
from drivetrain_cloud.kubernetes.plain_workers import delete_pod, those_of_role
from drivetrain_cloud.kubernetes.pods import (
    controls,
    has_ended,
    is_disrupted,
    is_leaving,
    is_terminating,
)

if TYPE_CHECKING:
    from drivetrain_cloud.kubernetes.job_spec import JobSpec
    from drivetrain_cloud.kubernetes.observed import Observed
    from drivetrain_cloud.kubernetes.operator_actions import OperatorAction


class CleanUp(NamedTuple):
    """What becomes of a job that has ended.

    Attributes:
        actions: To be carried out.
        ended_s: When it was first seen to have ended.
        look_again_s: When to look again; infinite for never.
    """

    actions: list[OperatorAction]
    ended_s: float
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
    done = [
        pod for pod in workers if has_ended(pod, "Succeeded") and not is_disrupted(pod)
    ]
    live = [pod for pod in workers if not has_ended(pod)]
    if done and not live:
        message = f"{len(done)} workers have ended with success"
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
    ended_s = observed.memory.ended_s
    ended_s = now_s if ended_s is None else ended_s
    job = observed.job
    actions: list[OperatorAction] = []
    for pod in observed.pods:
        keeps = spec.clean == CleanPodPolicy.NONE or (
            spec.clean == CleanPodPolicy.RUNNING and has_ended(pod)
        )
        if controls(job, pod) and not keeps and not is_terminating(pod):
            reason = f"the job has ended, and cleanPodPolicy is {spec.clean.value}"
            actions.append(delete_pod(pod, reason))
    due_s = ended_s + spec.ttl_s
    if now_s >= due_s:
        reason = f"it ended {spec.ttl_s:g} s ago"
        actions.append(delete_object("ElasticJob", job, reason))
        due_s = math.inf
    return CleanUp(actions, ended_s, due_s)
