"""The ElasticJob that a TrainingJob stands for: a pure function."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.pod_templates import owner_reference
from drivetrain_cloud.kubernetes.training_job.host_file import hosts_name, mount_hosts
from drivetrain_cloud.kubernetes.training_job.launcher_command import (
    parse_launcher_command,
)
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_cloud.kubernetes.training_job.launcher_command import (
        LauncherCommand,
    )

API_VERSION = "kai.alibabacloud.com/v1alpha1"
TRAINING_JOB_LABEL = "drivetrain.dev/training-job"
SPEC_ANNOTATION = "drivetrain.dev/training-job-spec"
"""Of an ElasticJob: from what it was translated."""
WORKERS_ANNOTATION = "drivetrain.dev/training-job-workers"
"""Of an ElasticJob: the replicas that the TrainingJob named then."""
SUSPENDED_ANNOTATION = "job-supervisor.kube-ai.io/job-suspended"
"""Of a TrainingJob: whether it gives its pods back."""
SPOT_ANNOTATION = "job-supervisor.kube-ai.io/spot-instance"
"""Of a TrainingJob: whether its workers run on spot nodes."""
WAIT_ANNOTATION = "job-supervisor.kube-ai.io/max-wait-time"
"""Of a TrainingJob: how long it waits for workers, in seconds, before it fails."""

_Item = dict[str, Any]


def owner_of_training(job: Mapping[str, Any]) -> _Item:
    """Returns the reference by which objects belong to a TrainingJob."""
    return owner_reference(job, API_VERSION, "TrainingJob")


def translate(
    job: Mapping[str, Any], elastic: Mapping[str, Any] | None = None
) -> _Item:
    """Returns the ElasticJob that a TrainingJob stands for.

    Args:
        job: The TrainingJob.
        elastic: The ElasticJob that is there already: it keeps its size, unless the
            TrainingJob names another one than it did.

    Raises:
        ProgramError: The launcher does something that has no counterpart here, or the
            numbers do not fit each other.

    Example:
        >>> pod = {"spec": {"containers": [{"image": "trainer"}]}}
        >>> launch = {"command": ["horovodrun", "-np", "2", "python", "train.py"]}
        >>> job = {"metadata": {"name": "a", "namespace": "n", "uid": "0"}, "spec": {
        ...     "etReplicaSpecs": {"worker": {"replicas": 2, "template": pod},
        ...     "launcher": {"template": {"spec": {"containers": [launch]}}}}}}
        >>> made = translate(job)["spec"]
        >>> made["replicas"], made["template"]["spec"]["containers"][0]["args"]
        (2, ['--nproc-per-node', '1', '--standbys', '0', '-m', 'drivetrain_horovod.on_elastic', 'train.py'])
    """
    spec = job["spec"]
    worker = spec["etReplicaSpecs"]["worker"]
    launcher = spec["etReplicaSpecs"].get("launcher")
    replicas = worker["replicas"]
    command = _command(launcher)
    slots = spec.get("slotsPerWorker", 1)
    least = worker.get("minReplicas", replicas)
    if command is not None:
        _check_numbers(command, worker, slots)
        least = max(least, -(-(command.min_processes or 1) // slots))
    template = copy.deepcopy(worker["template"])
    _label(template, job)
    if command is not None:
        _run_agent(template["spec"]["containers"][0], command, slots)
    limit = spec.get("backoffLimit", 6)
    annotations = job["metadata"].get("annotations") or {}
    made: _Item = {
        "minReplicas": least,
        "suspend": annotations.get(SUSPENDED_ANNOTATION) == "true",
        "template": template,
        "runPolicy": {
            "cleanPodPolicy": spec.get("cleanPodPolicy", "Running"),
            "backoffLimit": 0 if spec.get("restartPolicy") == "Never" else limit,
        },
    }
    if spot := _spot(annotations):
        made["spot"] = spot
    if launcher is not None:
        made["master"] = {"template": _master(launcher["template"], job, command)}
    text = json.dumps(made, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    known = (elastic or {"metadata": {}})["metadata"].get("annotations") or {}
    is_kept = known.get(WORKERS_ANNOTATION) == str(replicas)
    if elastic is not None:
        made["replicas"] = elastic["spec"]["replicas"] if is_kept else replicas
        # All agents have agreed on it.
        made["minReplicas"] = elastic["spec"].get("minReplicas", least)
    else:
        made["replicas"] = replicas
    return {
        "apiVersion": "drivetrain.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {
            "name": job["metadata"]["name"],
            "namespace": job["metadata"]["namespace"],
            "labels": {TRAINING_JOB_LABEL: job["metadata"]["name"]},
            "annotations": {
                SPEC_ANNOTATION: digest,
                WORKERS_ANNOTATION: str(replicas),
            },
            "ownerReferences": [owner_of_training(job)],
        },
        "spec": made,
    }


def _spot(annotations: Mapping[str, str]) -> _Item:
    spot: _Item = {}
    if annotations.get(SPOT_ANNOTATION) == "true":
        spot["enabled"] = True
    if wait := annotations.get(WAIT_ANNOTATION):
        if not wait.isdecimal():
            message = f"the annotation {WAIT_ANNOTATION} must be seconds, got {wait!r}"
            raise ProgramError(message)
        spot["maxWaitSeconds"] = int(wait)
    return spot


def spec_change(elastic: Mapping[str, Any], wanted: Mapping[str, Any]) -> _Item | None:
    """Returns the patch that makes one ElasticJob of another; None if they are alike.

    Args:
        elastic: The one that is there.
        wanted: As `translate` returns it.
    """
    told = wanted["metadata"]["annotations"]
    known = elastic["metadata"].get("annotations") or {}
    if all(known.get(key) == value for key, value in told.items()):
        return None
    return {
        "metadata": {
            "annotations": told,
            "resourceVersion": elastic["metadata"]["resourceVersion"],
        },
        "spec": _merge_patch(elastic["spec"], wanted["spec"]),
    }


def _merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> _Item:
    patch: _Item = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := _merge_patch(old, value):
                patch[key] = inner
        elif key not in before or old != value:
            patch[key] = value
    return patch


def _command(launcher: Mapping[str, Any] | None) -> LauncherCommand | None:
    if launcher is None:
        return None
    return parse_launcher_command(launcher["template"]["spec"]["containers"][0])


def _check_numbers(
    command: LauncherCommand, worker: Mapping[str, Any], slots: int
) -> None:
    """Checks that processes and workers say the same.

    Raises:
        ProgramError: They do not.
    """
    replicas, most = worker["replicas"], worker.get("maxReplicas")
    there = f"{replicas} workers of {slots} slots"
    if command.slots is not None and command.slots != slots:
        message = f"the launcher says {command.slots} slots, and slotsPerWorker {slots}"
        raise ProgramError(message)
    for option, wanted in (
        ("-np", command.num_processes),
        ("--min-np", command.min_processes),
    ):
        if wanted is not None and wanted > replicas * slots:
            message = f"the launcher waits for {option} {wanted} processes: {there}"
            raise ProgramError(message)
    if command.max_processes is not None:
        num = (most or replicas) * slots
        if command.max_processes < replicas * slots or (
            most is not None and command.max_processes < num
        ):
            message = (
                f"the launcher's --max-np {command.max_processes} is less than the {num} "
                "processes that workers may have"
            )
            raise ProgramError(message)


def _label(template: _Item, job: Mapping[str, Any]) -> None:
    data = template.setdefault("metadata", {})
    labels = {TRAINING_JOB_LABEL: job["metadata"]["name"]}
    data["labels"] = {**(data.get("labels") or {}), **labels}


def _run_agent(container: _Item, command: LauncherCommand, slots: int) -> None:
    """Lets a worker's container run the agent, with the launcher's program."""
    container["command"] = [
        command.python,
        "-m",
        "drivetrain_cloud.kubernetes.agent",
    ]
    options = ["--nproc-per-node", str(slots), "--standbys", "0"]
    horovod = []
    if command.elastic_timeout_s is not None:
        horovod += ["--elastic-timeout", str(command.elastic_timeout_s)]
    if command.reset_limit is not None:
        horovod += ["--reset-limit", str(command.reset_limit)]
    container["args"] = [
        *options,
        *("-m", "drivetrain_horovod.on_elastic"),
        *horovod,
        *command.program,
    ]
    _put_env(container, command.env)


def _put_env(container: _Item, env: Mapping[str, str]) -> None:
    if env:
        given = [one for one in container.get("env") or () if one["name"] not in env]
        said = [{"name": name, "value": value} for name, value in env.items()]
        container["env"] = [*given, *said]


def _master(
    template: Mapping[str, Any],
    job: Mapping[str, Any],
    command: LauncherCommand | None,
) -> _Item:
    """Returns the pod of the master: the launcher's, with another command."""
    made: _Item = copy.deepcopy(dict(template))
    _label(made, job)
    container = made["spec"]["containers"][0]
    container.setdefault("name", "master")
    python = command.python if command is not None else "python"
    container["command"] = [python, "-m", "drivetrain_cloud.kubernetes.master"]
    container.pop("args", None)
    mount_hosts(made, hosts_name(job))
    return made
