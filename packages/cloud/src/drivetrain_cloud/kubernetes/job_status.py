"""The status of a job, as people and autoscalers read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.plain_workers import (
    present_workers,
    those_of_role,
    withdraw,
)
from drivetrain_cloud.kubernetes.pods import (
    JOB_LABEL,
    ROLE_LABEL,
    condition,
    controls,
    exit_words,
    has_ended,
    is_disrupted,
    is_leaving,
    is_on_demand,
    is_ready,
    is_terminating,
    number_of,
    role_of,
    why_it_waits,
)

if TYPE_CHECKING:
    from drivetrain_cloud.kubernetes.job_spec import JobSpec
    from drivetrain_cloud.kubernetes.observed import Observed

_Item = dict[str, Any]
_TIMES = frozenset({"startTime", "completionTime", "lastReconcileTime"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What has been decided about a job as a whole.

    Args:
        phase: `Succeeded`, `Failed` or `Suspended`; empty while it goes on.
        reason: Why, in a word.
        message: Why, in a sentence.
    """

    phase: str = ""
    reason: str = ""
    message: str = ""


def status_of(job: _Item) -> _Item:
    """Returns the status of a job, empty for one that is new."""
    found: _Item = job.get("status") or {}
    return found


def is_finished(job: _Item) -> bool:
    """Whether a job has ended for good."""
    return status_of(job).get("phase") in {"Succeeded", "Failed"}


def is_like(before: _Item, after: _Item) -> bool:
    """Whether two statuses, of whatever kind of job, differ in nothing but times."""
    return _without_times(before) == _without_times(after)


def _without_times(status: _Item) -> _Item:
    rows = [
        (one["type"], one["status"], one.get("reason"), one.get("message") or "")
        for one in status.get("conditions") or ()
    ]
    rest = {key: value for key, value in status.items() if key not in _TIMES}
    trainer = dict(rest.pop("trainerStatus", None) or {})
    trainer.pop("lastUpdatedTime", None)
    return {**rest, "conditions": rows, "trainerStatus": trainer}


def count_failures(observed: Observed) -> tuple[int, list[str], str]:
    """Counts each worker that has failed by itself once, however often it is looked at.

    The UIDs of those that are counted stay in the status until their pods are gone: a
    pod is deleted only when it is among them.

    Args:
        observed: The job and what belongs to it.

    Returns:
        How many there were, the UIDs of those that are not yet gone, and how the last
        one has ended.
    """
    status = status_of(observed.job)
    before = set(status.get("countedPods") or ())
    failed = {
        pod["metadata"]["uid"]: pod
        for pod in those_of_role(observed, "worker")
        if has_ended(pod, "Failed")
        and not is_disrupted(pod)
        and not is_leaving(pod)
        and (not is_terminating(pod) or pod["metadata"]["uid"] in before)
    }
    new = [uid for uid in failed if uid not in before]
    words = exit_words(failed[new[-1]]) if new else ""
    return status.get("failures", 0) + len(new), sorted(failed), words


def next_status(observed: Observed, spec: JobSpec, verdict: Verdict) -> _Item:
    """Returns the status that a job shall have, without times.

    Args:
        observed: The job and what belongs to it.
        spec: What it says.
        verdict: What has been decided about it as a whole.
    """
    before = status_of(observed.job)
    workers = those_of_role(observed, "worker")
    here = present_workers(observed)
    ready = [pod for pod in here if is_ready(pod)]
    failures, counted, _ = count_failures(observed)
    training = _num_training(observed, ready)
    phase = verdict.phase or _phase(observed, spec, here, ready, training)
    name = observed.job["metadata"]["name"]
    status: _Item = {
        "phase": phase,
        "observedGeneration": observed.job["metadata"].get("generation", 0),
        "replicas": len(here),
        "readyReplicas": len(ready),
        "selector": f"{JOB_LABEL}={name},{ROLE_LABEL}=worker",
        "failures": failures,
        "countedPods": counted,
        "lastPodNumber": max(
            [-1, before.get("lastPodNumber", -1), *(number_of(pod) for pod in workers)]
        ),
        "conditions": [
            *_conditions(phase, spec, here, ready, verdict),
            *_obstacles(observed, phase),
        ],
    }
    if failures > before.get("failures", 0):
        status["lastFailureTime"] = observed.stamp()
    elif "lastFailureTime" in before:
        status["lastFailureTime"] = before["lastFailureTime"]
    if withdraw(observed, spec, 0.0)[0]:
        status["noRoomTime"] = observed.stamp()
    elif "noRoomTime" in before:
        status["noRoomTime"] = before["noRoomTime"]
    if spec.is_spot:
        status["onDemandReplicas"] = sum(map(is_on_demand, here))
    fitted = spec.fitted or before.get("workerResources")
    if spec.fit is not None and fitted:
        status["workerResources"] = fitted
    if spec.roles:
        status["roles"] = [_role(observed, role.name) for role in spec.roles]
    if observed.view is not None and observed.view.step:
        status["trainerStatus"] = {"step": observed.view.step}
    elif before.get("trainerStatus"):
        status["trainerStatus"] = before["trainerStatus"]
    return status


def what_waits(observed: Observed) -> tuple[str, str]:
    """Returns why the first pod that does not begin waits, in a word and in a sentence.

    Both are empty if all have begun.

    Args:
        observed: The job and what belongs to it.
    """
    ours = [pod for pod in observed.pods if controls(observed.job, pod)]
    for pod in sorted(ours, key=lambda pod: (role_of(pod) != "master", number_of(pod))):
        reason, words = why_it_waits(pod)
        if reason and not is_terminating(pod):
            return (
                reason,
                f"{pod['metadata']['name']}: {reason}: {words or 'no message'}",
            )
    return "", ""


def _obstacles(observed: Observed, phase: str) -> list[_Item]:
    """Returns the conditions that say what a job waits for: its pods, its master."""
    if phase in {"Suspended", "Succeeded", "Failed"}:
        return []
    reason, words = what_waits(observed)
    rows = [condition("PodsStarted", reason or "Started", words, holds=not reason)]
    if not observed.master_uid:
        said = ("NotReady", "the pod of the master is not ready")
    elif observed.master_error:
        said = ("NoAnswer", observed.master_error)
    else:
        said = ("Answers", "")
    return [*rows, condition("MasterReachable", *said, holds=said[0] == "Answers")]


def _num_training(observed: Observed, ready: list[_Item]) -> int:
    if observed.view is None:
        return len(ready)
    names = {pod["metadata"]["name"] for pod in ready}
    return len(names & observed.view.training)


def _phase(
    observed: Observed,
    spec: JobSpec,
    here: list[_Item],
    ready: list[_Item],
    training: int,
) -> str:
    began = status_of(observed.job).get("phase", "Pending") not in {"Pending", ""}
    if training < spec.spot.least or not ready:
        return "Waiting" if began else "Pending"
    if any(is_leaving(pod) for pod in here) or len(ready) != len(here):
        return "Scaling"
    return "Running"


def _role(observed: Observed, name: str) -> _Item:
    pods = [pod for pod in those_of_role(observed, name) if not is_terminating(pod)]
    return {
        "name": name,
        "replicas": sum(not has_ended(pod) for pod in pods),
        "readyReplicas": sum(is_ready(pod) for pod in pods),
    }


def _conditions(
    phase: str,
    spec: JobSpec,
    here: list[_Item],
    ready: list[_Item],
    verdict: Verdict,
) -> list[_Item]:
    told = f"{len(ready)} of {spec.replicas} workers are ready"
    is_running = phase in {"Running", "Scaling"}
    enough = len(ready) >= spec.replicas
    said = (verdict.reason, verdict.message)
    rows = [
        ("Created", True, "JobCreated", "the operator looks after the job"),
        ("WorkersCreated", len(here) >= spec.replicas, "Workers", told),
        ("WorkersReady", enough, "Workers", told),
        ("Running", is_running, phase, told),
    ]
    for kind in ("Suspended", "Succeeded", "Failed"):
        holds = phase == kind
        rows.append((kind, holds, *(said if holds else (phase, told))))
    # A condition that does not hold says nothing that changes all the time.
    return [
        condition(kind, reason or kind, message if holds else "", holds=holds)
        for kind, holds, reason, message in rows
    ]
