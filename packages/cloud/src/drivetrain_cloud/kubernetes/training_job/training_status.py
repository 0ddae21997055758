"""The status of a TrainingJob, from that of its ElasticJob."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.pods import (
    condition,
    has_condition,
    has_ended,
    is_leaving,
    is_ready,
    is_terminating,
    role_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_Item = dict[str, Any]
_KINDS = (
    "Created",
    "WorkersCreated",
    "WorkersReady",
    "LauncherCreated",
    "Running",
    "Restarting",
    "Suspended",
    "Succeeded",
    "Failed",
)


def training_status(
    job: Mapping[str, Any],
    elastic: Mapping[str, Any] | None,
    pods: Sequence[_Item],
    *,
    scaler: str,
    hosts: Sequence[str],
    leaving: Collection[str],
    now: str,
) -> _Item:
    """Returns the status that a TrainingJob shall have.

    Args:
        job: The TrainingJob.
        elastic: Its ElasticJob; None before it is made.
        pods: Of its workers and its master.
        scaler: Who scales it now, as `name_of` says; empty for nobody.
        hosts: The pods that the host file names.
        leaving: The pods that a ScaleIn has chosen.
        now: The server's time.
    """
    before = job.get("status") or {}
    workers = [pod for pod in pods if role_of(pod) == "worker"]
    masters = [pod for pod in pods if role_of(pod) == "master"]
    below = (elastic or {}).get("status") or {}
    holds = {
        kind
        for kind in ("WorkersCreated", "WorkersReady", "Running", "Succeeded", "Failed")
        if has_condition(elastic or {}, kind)
    }
    holds.add("Created")
    if masters:
        holds.add("LauncherCreated")
    if below.get("phase") == "Waiting":
        holds.add("Restarting")
    if below.get("phase") == "Suspended":
        holds.add("Suspended")
    status: _Item = {
        "phase": _phase(below.get("phase", "Pending"), holds, scaler),
        "observedGeneration": job["metadata"].get("generation", 0),
        "replicaStatuses": {"launcher": _count(masters), "worker": _count(workers)},
        "restartCount": below.get("failures", 0),
        "targetWorkers": sorted(
            pod["metadata"]["name"]
            for pod in workers
            if not has_ended(pod)
            and not is_terminating(pod)
            and not is_leaving(pod)
            and pod["metadata"]["name"] not in leaving
        ),
        "currentWorkers": list(hosts),
    }
    if scaler:
        status["currentScaler"] = scaler
    for key in ("startTime", "completionTime"):
        if below.get(key):
            status[key] = below[key]
    status["conditions"] = _conditions(before, elastic, holds, now)
    status["lastReconcileTime"] = now
    return status


def invalid_status(job: Mapping[str, Any], message: str, now: str) -> _Item:
    """Returns the status of a TrainingJob that cannot be translated.

    Args:
        job: The TrainingJob.
        message: Why.
        now: The server's time.
    """
    status = dict(job.get("status") or {})
    status.setdefault("phase", "Created")
    status["observedGeneration"] = job["metadata"].get("generation", 0)
    kept = [one for one in status.get("conditions") or () if one["type"] != "Invalid"]
    invalid = condition("Invalid", "InvalidSpec", message)
    status["conditions"] = [*kept, {**invalid, "lastUpdateTime": now}]
    status["lastReconcileTime"] = now
    return status


def _phase(below: str, holds: Collection[str], scaler: str) -> str:
    if below in {"Suspended", "Succeeded", "Failed"}:
        return below
    if below == "Waiting":
        return "Restarting"
    if scaler and "Running" in holds:
        return "Scaling"
    order = ("Running", "LauncherCreated", "WorkersReady", "WorkersCreated")
    return next((kind for kind in order if kind in holds), "Created")


def _count(pods: Sequence[_Item]) -> _Item:
    found = Counter(
        "succeeded"
        if has_ended(pod, "Succeeded")
        else "failed"
        if has_ended(pod, "Failed")
        else "active"
        if is_ready(pod)
        else ""
        for pod in pods
    )
    return {key: found[key] for key in ("active", "succeeded", "failed")}


def _conditions(
    before: Mapping[str, Any],
    elastic: Mapping[str, Any] | None,
    holds: Collection[str],
    now: str,
) -> list[_Item]:
    known = {one["type"]: one for one in before.get("conditions") or ()}
    said = {
        one["type"]: one
        for one in ((elastic or {}).get("status") or {}).get("conditions") or ()
    }
    rows = []
    for kind in _KINDS:
        does = kind in holds
        message = (said.get(kind) or {}).get("message", "") if does else ""
        row = condition(kind, f"TrainingJob{kind}", message, holds=does)
        was = known.get(kind) or {}
        same = all(was.get(key, "") == row[key] for key in row)
        row["lastUpdateTime"] = was.get("lastUpdateTime", now) if same else now
        rows.append(row)
    return rows
