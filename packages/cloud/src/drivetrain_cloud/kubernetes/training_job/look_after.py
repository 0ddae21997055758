"""What is done now for a TrainingJob, from all that belongs to it: no call is made here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cloud.kubernetes.job_status import is_finished, is_like
from drivetrain_cloud.kubernetes.operator_actions import (
    CreateObject,
    PatchObject,
    SetStatus,
    TellEvent,
    patch_object,
)
from drivetrain_cloud.kubernetes.plain_workers import LEAVE
from drivetrain_cloud.kubernetes.pods import (
    condition,
    controls,
    has_ended,
    is_leaving,
    is_ready,
    is_terminating,
    role_of,
)
from drivetrain_cloud.kubernetes.training_job.host_file import (
    FILE,
    host_script,
    hosts_name,
)
from drivetrain_cloud.kubernetes.training_job.scaling import (
    SCALED_BY,
    current_scaler,
    end_scaler,
    name_of,
    next_change,
    pods_that_leave,
)
from drivetrain_cloud.kubernetes.training_job.training_status import (
    invalid_status,
    training_status,
)
from drivetrain_cloud.kubernetes.training_job.translate import (
    TRAINING_JOB_LABEL,
    owner_of_training,
    spec_change,
    translate,
)
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_cloud.kubernetes.operator_actions import OperatorAction
    from drivetrain_cloud.kubernetes.training_job.scaling import Change

_Item = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingObserved:
    """A TrainingJob and all that belongs to it at one moment.

    Args:
        job: The TrainingJob.
        elastic: The ElasticJob of its name, if there is one.
        pods: Those that carry its label.
        scalers: Every ScaleIn and ScaleOut that names it.
        now: The server's time.
    """

    job: _Item
    elastic: _Item | None = None
    pods: tuple[_Item, ...] = ()
    scalers: tuple[_Item, ...] = ()
    now: str = ""


class ForTraining(NamedTuple):
    """Something to be done.

    Attributes:
        subject: The object that it is about.
        action: What.
    """

    subject: _Item
    action: OperatorAction


def look_after(observed: TrainingObserved) -> list[ForTraining]:
    """Decides what is done now; asks for nothing again once it has been carried out.

    Pods are none of its business: it changes the host file, and what the ElasticJob says,
    in the order that scripts depend on. Workers are taken out of the host file before
    they are asked to leave, and put into it once all new ones are ready.

    Args:
        observed: The job and all that belongs to it.
    """
    job = observed.job
    if job["metadata"].get("deletionTimestamp"):
        return []
    before = list((job.get("status") or {}).get("currentWorkers") or ())
    elastic = observed.elastic
    if elastic is not None and not controls(job, elastic):
        elastic = None
    try:
        wanted = translate(job, elastic)
    except ProgramError as error:
        told = invalid_status(job, str(error), observed.now)
        return _set_status(job, told)
    if elastic is None:
        steps = [
            ForTraining(job, CreateObject(kind="ConfigMap", item=_config_map(job))),
            ForTraining(job, CreateObject(kind="ElasticJob", item=wanted)),
        ]
        # What makes them says whether they are somebody else's, before this is told.
        return [*steps, *_told(observed, None, None, before)]
    steps = []
    if is_finished(elastic):
        for one in observed.scalers:
            message = f"the job has ended: {elastic['status']['phase']}"
            steps += _fail(one, "JobEnded", message)
        return [*steps, *_told(observed, elastic, None, before)]
    if patch := spec_change(elastic, wanted):
        change_it = patch_object("ElasticJob", elastic, patch, "the job was changed")
        return [ForTraining(job, change_it)]
    return _scale(observed, elastic, before)


def _scale(
    observed: TrainingObserved, elastic: _Item, before: list[str]
) -> list[ForTraining]:
    """Carries a ScaleIn or ScaleOut on, and keeps the host file as it shall be."""
    job = observed.job
    workers = [pod for pod in observed.pods if role_of(pod) == "worker"]
    scaler, waiting = current_scaler(observed.scalers)
    steps: list[ForTraining] = []
    change: Change | None = None
    if scaler is not None:
        change = next_change(scaler, job, elastic, workers, before, observed.now)
        status = change.status
        if not change.is_over:
            steps += _set_status(scaler, status)
        hosts = _hosts(workers, before, scaler, change)
    else:
        hosts = _hosts(workers, before, None, None)
    if hosts != before:
        text = host_script(hosts, job["spec"].get("slotsPerWorker", 1))
        write = PatchObject(
            kind="ConfigMap",
            namespace=job["metadata"]["namespace"],
            name=hosts_name(job),
            patch={"data": {FILE: text}},
            reason="workers have come or gone",
        )
        steps.append(ForTraining(job, write))
    if change is not None and change.replicas is not None and scaler is not None:
        patch = {
            "metadata": {
                "annotations": {
                    SCALED_BY: None if change.is_over else scaler["metadata"]["uid"],
                    LEAVE: ",".join(change.leave) or None,
                },
                # Nobody else's change is undone by it.
                "resourceVersion": elastic["metadata"]["resourceVersion"],
            },
            "spec": {"replicas": change.replicas},
        }
        resize = patch_object("ElasticJob", elastic, patch, name_of(scaler))
        steps.append(ForTraining(job, resize))
    if change is not None and change.is_over and scaler is not None:
        steps += _set_status(scaler, change.status)
        steps.append(ForTraining(job, _end_event(scaler, change)))
    for one in waiting:
        message = f"waits for {name_of(scaler or one)}"
        steps += _set_status(one, _pending(message))
    is_under_way = change is not None and not change.is_over
    now_scaling = scaler if is_under_way and _begins(change) else None
    return [*steps, *_told(observed, elastic, now_scaling, hosts, change)]


def _begins(change: Change | None) -> bool:
    return change is not None and change.status["phase"] == "Scaling"


def _hosts(
    workers: Sequence[_Item],
    before: Sequence[str],
    scaler: _Item | None,
    change: Change | None,
) -> list[str]:
    """Returns the pods that the host file shall name."""
    ready = {
        pod["metadata"]["name"]
        for pod in workers
        if is_ready(pod) and not is_leaving(pod)
    }
    if change is None or scaler is None or not _begins(change):
        return sorted(ready)
    if scaler["kind"] == "ScaleOut":
        there = {
            pod["metadata"]["name"]
            for pod in workers
            if not has_ended(pod) and not is_terminating(pod)
        }
        return [name for name in before if name in there]
    return sorted(ready - set(change.status.get("toDeletePods") or ()))


def _told(
    observed: TrainingObserved,
    elastic: _Item | None,
    scaler: _Item | None,
    hosts: Sequence[str],
    change: Change | None = None,
) -> list[ForTraining]:
    leaving = pods_that_leave(scaler)
    if scaler is not None and change is not None:
        leaving |= set(change.leave)
    status = training_status(
        observed.job,
        elastic,
        observed.pods,
        scaler=name_of(scaler) if scaler is not None else "",
        hosts=hosts,
        leaving=leaving,
        now=observed.now,
    )
    return _set_status(observed.job, status)


def _set_status(item: _Item, status: _Item) -> list[ForTraining]:
    if is_like(item.get("status") or {}, status):
        return []
    return [ForTraining(item, SetStatus(status=status))]


def _fail(scaler: _Item, reason: str, message: str) -> list[ForTraining]:
    if current_scaler([scaler])[0] is None:
        return []
    return _set_status(scaler, end_scaler(scaler, reason, message).status)


def _pending(message: str) -> _Item:
    row = condition("Pending", "AnotherScales", message)
    return {"phase": "Pending", "conditions": [row]}


def _end_event(scaler: _Item, change: Change) -> TellEvent:
    phase = change.status["phase"]
    row = next(one for one in change.status["conditions"] if one["type"] == phase)
    note = f"{name_of(scaler)}: {row['message']}"
    return TellEvent(reason=phase, note=note, is_warning=phase == "ScaleFailed")


def _config_map(job: _Item) -> _Item:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": hosts_name(job),
            "namespace": job["metadata"]["namespace"],
            "labels": {TRAINING_JOB_LABEL: job["metadata"]["name"]},
            "ownerReferences": [owner_of_training(job)],
        },
        "data": {FILE: host_script((), 1)},
    }
