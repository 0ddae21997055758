"""What ScaleIn and ScaleOut make of a job: one at a time, and pure functions."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cloud.kubernetes.pods import (
    condition,
    has_ended,
    is_leaving,
    is_ready,
    is_terminating,
    number_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SCALED_BY = "drivetrain.dev/scaled-by"
"""Of an ElasticJob: the UID of the object by which it has its size."""

_Item = dict[str, Any]


class Change(NamedTuple):
    """How far a scaling is.

    Attributes:
        status: That its object shall have, without times.
        replicas: That the job shall have now; None to leave it as it is.
        leave: The pods that leave.
        is_over: Whether nothing is left to be done.
    """

    status: _Item
    replicas: int | None = None
    leave: tuple[str, ...] = ()
    is_over: bool = False


def name_of(scaler: Mapping[str, Any]) -> str:
    """Returns what a job's status calls the object that scales it.

    Example:
        >>> name_of({"kind": "ScaleIn", "metadata": {"name": "less"}})
        'ScaleIn/less'
    """
    return f"{scaler['kind']}/{scaler['metadata']['name']}"


def is_scaled(scaler: Mapping[str, Any]) -> bool:
    """Whether a ScaleIn or ScaleOut has come to its end."""
    return _phase(scaler) in {"ScaleSucceeded", "ScaleFailed"}


def current_scaler(scalers: Iterable[_Item]) -> tuple[_Item | None, list[_Item]]:
    """Returns the object that scales a job now, and those that wait for it, in order.

    One that has begun goes on until its end; of the rest the oldest comes first.

    Args:
        scalers: All of a job.
    """
    left = sorted(
        (one for one in scalers if not is_scaled(one)),
        key=lambda one: (
            _phase(one) != "Scaling",
            one["metadata"].get("creationTimestamp") or "",
            name_of(one),
        ),
    )
    return (left[0] if left else None), left[1:]


def pods_that_leave(scaler: Mapping[str, Any] | None) -> set[str]:
    """Returns the pods that a ScaleIn which is under way has chosen."""
    if scaler is None or scaler["kind"] != "ScaleIn" or is_scaled(scaler):
        return set()
    return set((scaler.get("status") or {}).get("toDeletePods") or ())


def next_change(
    scaler: _Item,
    job: Mapping[str, Any],
    elastic: Mapping[str, Any],
    workers: Sequence[_Item],
    hosts: Iterable[str],
    now: str = "",
) -> Change:
    """Decides what comes next for a ScaleIn or a ScaleOut.

    Args:
        scaler: Which one.
        job: The TrainingJob.
        elastic: Its ElasticJob.
        workers: The pods of its workers.
        hosts: Those that the host file names.
        now: The server's time.
    """
    here = [pod for pod in workers if not has_ended(pod) and not is_terminating(pod)]
    if scaler["kind"] == "ScaleIn":
        return _scale_in(scaler, elastic, workers, here)
    change = _scale_out(scaler, job, elastic, here, set(hosts))
    limit_s = scaler["spec"].get("timeout")
    since_s = _seconds_scaling(scaler, now)
    if change.is_over or not limit_s or since_s is None or since_s < limit_s:
        return change
    message = f"its workers were not ready within {limit_s} s: they are deleted"
    ended = end_scaler(scaler, "TimeOut", message)
    if not _has_scaled(scaler, elastic):
        # The job has not grown by it, or has its size back already.
        return ended
    left = max(1, elastic["spec"]["replicas"] - scaler["spec"]["toAdd"]["count"])
    added = change.status.get("addPods") or ()
    return ended._replace(replicas=left, leave=tuple(added))


def _seconds_scaling(scaler: Mapping[str, Any], now: str) -> float | None:
    """Returns for how long one scales already; None if it does not."""
    for one in (scaler.get("status") or {}).get("conditions") or ():
        if one["type"] == "Scaling" and one["status"] == "True" and now:
            since = one.get("lastTransitionTime") or now
            dates = map(dt.datetime.fromisoformat, (now, since))
            return (next(dates) - next(dates)).total_seconds()
    return None


def end_scaler(scaler: _Item, reason: str, message: str) -> Change:
    """Returns the end of one that cannot be carried out.

    Args:
        scaler: Which one.
        reason: In a word.
        message: In a sentence.
    """
    return Change(_status(scaler, "ScaleFailed", reason, message), is_over=True)


def _scale_in(
    scaler: _Item,
    elastic: Mapping[str, Any],
    workers: Sequence[_Item],
    here: Sequence[_Item],
) -> Change:
    chosen = tuple((scaler.get("status") or {}).get("toDeletePods") or ())
    replicas = elastic["spec"]["replicas"]
    if _phase(scaler) != "Scaling":
        wanted = scaler["spec"]["toDelete"]
        names = {pod["metadata"]["name"] for pod in here}
        named = wanted.get("podNames")
        num = len(named) if named else wanted["count"]
        least = elastic["spec"].get("minReplicas", 1)
        if replicas - num < least:
            message = (
                f"{replicas} workers less {num} are fewer than minReplicas, which is "
                f"{least}"
            )
            return end_scaler(scaler, "BelowMinReplicas", message)
        if strangers := [name for name in named or () if name not in names]:
            message = (
                f"{', '.join(strangers)}: no worker of the job has this name; its "
                f"workers are {', '.join(sorted(names)) or 'not there yet'}"
            )
            return end_scaler(scaler, "NoSuchWorker", message)
        if len(here) != replicas or any(is_leaving(pod) for pod in here):
            message = f"{len(here)} workers are there, of {replicas}"
            return Change(_status(scaler, "Pending", "WorkersMissing", message))
        chosen = tuple(named or _first_to_leave(here, num))
    message = (
        f"{', '.join(chosen)}: taken out of the host file; they leave, and go then"
    )
    status = _status(scaler, "Scaling", "WorkersLeave", message, chosen)
    if not _has_scaled(scaler, elastic):
        return Change(status, replicas - len(chosen), chosen)
    if {pod["metadata"]["name"] for pod in workers} & set(chosen):
        return Change(status, leave=chosen)
    message = f"{', '.join(chosen)}: gone"
    done = _status(scaler, "ScaleSucceeded", "WorkersGone", message, chosen)
    return Change(done, is_over=True)


def _scale_out(
    scaler: _Item,
    job: Mapping[str, Any],
    elastic: Mapping[str, Any],
    here: Sequence[_Item],
    hosts: set[str],
) -> Change:
    replicas = elastic["spec"]["replicas"]
    num = scaler["spec"]["toAdd"]["count"]
    most = job["spec"]["etReplicaSpecs"]["worker"].get("maxReplicas")
    if _phase(scaler) != "Scaling" and most is not None and replicas + num > most:
        message = (
            f"{replicas} workers and {num} more are more than maxReplicas, which is "
            f"{most}"
        )
        return end_scaler(scaler, "AboveMaxReplicas", message)
    staying = [pod for pod in here if not is_leaving(pod)]
    new = tuple(
        sorted(
            pod["metadata"]["name"]
            for pod in staying
            if pod["metadata"]["name"] not in hosts
        )
    )
    has_scaled = _has_scaled(scaler, elastic)
    wanted = replicas if has_scaled else replicas + num
    ready = sum(is_ready(pod) for pod in staying)
    if not has_scaled or ready < wanted:
        message = f"{ready} of {wanted} workers are ready"
        status = _status(scaler, "Scaling", "WorkersAreMade", message, new)
        return Change(status, None if has_scaled else wanted)
    message = f"{', '.join(new)}: ready, and in the host file"
    done = _status(scaler, "ScaleSucceeded", "WorkersReady", message, new)
    return Change(done, is_over=True)


def _first_to_leave(pods: Sequence[_Item], num: int) -> list[str]:
    ordered = sorted(pods, key=lambda pod: (is_ready(pod), -number_of(pod)))
    return sorted(pod["metadata"]["name"] for pod in ordered[:num])


def _has_scaled(scaler: Mapping[str, Any], elastic: Mapping[str, Any]) -> bool:
    """Whether the ElasticJob has its size by this object."""
    annotations = elastic["metadata"].get("annotations") or {}
    return bool(annotations.get(SCALED_BY) == scaler["metadata"]["uid"])


def _phase(scaler: Mapping[str, Any]) -> str:
    return str((scaler.get("status") or {}).get("phase") or "")


def _status(
    scaler: Mapping[str, Any],
    phase: str,
    reason: str,
    message: str,
    pods: Sequence[str] = (),
) -> _Item:
    status: _Item = {"phase": phase}
    if pods:
        field = "toDeletePods" if scaler["kind"] == "ScaleIn" else "addPods"
        status[field] = list(pods)
    status["conditions"] = [
        condition(kind, reason, message)
        if kind == phase
        else condition(kind, phase, "", holds=False)
        for kind in ("Pending", "Scaling", "ScaleSucceeded", "ScaleFailed")
    ]
    return status
