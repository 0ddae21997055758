"""The objects of a job: its pods, and the service of its master."""

from __future__ import annotations

import copy
import hashlib
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.job_spec import Gang
from drivetrain_cloud.kubernetes.pods import (
    JOB_LABEL,
    MARKET_LABEL,
    NUMBER_LABEL,
    ROLE_LABEL,
)
from drivetrain_cloud.kubernetes.quantities import read_quantity
from drivetrain_cloud.spot.capacity import Market

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_cloud.kubernetes.job_spec import JobSpec, RoleSpec

MASTER_PORT = 29400
JOURNAL_FOLDER = "/var/lib/drivetrain"
"""Where the volume of a master is mounted, which lasts as long as its pod."""
TEMPLATE_HASH = "drivetrain.dev/template"
"""An annotation of a worker: of which template it was made."""
_MOST_UNITS = 4096
# What a container of the master, and its pod, take over from those of a worker.
_TAKEN = ("image", "imagePullPolicy", "securityContext")
_POD_TAKEN = (
    *("imagePullSecrets", "serviceAccountName", "automountServiceAccountToken"),
    *("securityContext", "priorityClassName", "tolerations"),
)
# A master of some hundred agents; one of thousands needs a template of its own.
_REQUESTS = {"cpu": "250m", "memory": "512Mi"}
_LIMITS = {"cpu": "2", "memory": "2Gi"}
_GROUP = "scheduling.k8s.io/group-name"
_Item = dict[str, Any]


def owner_of(job: Mapping[str, Any]) -> _Item:
    """Returns the reference by which objects belong to a job."""
    return owner_reference(job, "drivetrain.dev/v1alpha1", "ElasticJob")


def owner_reference(job: Mapping[str, Any], api_version: str, kind: str) -> _Item:
    """Returns the reference by which objects belong to a job of some kind."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def labels_of(job: Mapping[str, Any], role: str) -> dict[str, str]:
    """Returns the labels by which pods of a role are found."""
    return {JOB_LABEL: job["metadata"]["name"], ROLE_LABEL: role}


def master_name(job: Mapping[str, Any]) -> str:
    """Returns the name of a job's master, its service and its secret."""
    return f"{job['metadata']['name']}-master"


def master_service(job: Mapping[str, Any], address: str = "") -> _Item:
    """Returns the service by which the master is reached.

    Args:
        job: The job.
        address: That one which was deleted had: pods that are there know no other.
    """
    item: _Item = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, master_name(job), labels_of(job, "master")),
        "spec": {
            "selector": labels_of(job, "master"),
            # Agents look for a master that has just begun, and retry.
            "publishNotReadyAddresses": True,
            "ports": [{"name": "grpc", "port": MASTER_PORT, "protocol": "TCP"}],
        },
    }
    if address:
        item["spec"]["clusterIP"] = address
    return item


def master_pod(job: Mapping[str, Any], spec: JobSpec) -> _Item:
    """Returns the pod of the master; on nodes that stay, if the job says which do.

    Without a template of its own it has the image and the rights of a worker, and nothing
    else of it.

    Args:
        job: The job.
        spec: What it says.
    """
    template = spec.master_template or _template_of_master(spec.template["spec"])
    pod = _pod(job, master_name(job), template, labels_of(job, "master"))
    pod["spec"]["restartPolicy"] = "Always"
    container = pod["spec"]["containers"][0]
    container["readinessProbe"] = {
        "tcpSocket": {"port": MASTER_PORT},
        "periodSeconds": 1,
    }
    ports = container.setdefault("ports", [])
    if all(one.get("containerPort") != MASTER_PORT for one in ports):
        ports.append({"name": "grpc", "containerPort": MASTER_PORT})
    journal = spec.journal
    if not journal:
        journal = f"{JOURNAL_FOLDER}/journal.db"
        pod["spec"].setdefault("volumes", []).append(
            {"name": "journal", "emptyDir": {}}
        )
        mount = {"name": "journal", "mountPath": JOURNAL_FOLDER}
        container.setdefault("volumeMounts", []).append(mount)
    _put_env(
        container,
        _field("DRIVETRAIN_POD_IP", "status.podIP"),
        *(_secret(job, name, key) for name, key in _MASTER_SECRETS),
        {"name": "DRIVETRAIN_ELASTIC_JOURNAL", "value": journal},
    )
    _select(pod, spec.on_demand_selector)
    _leave_dead_nodes(pod)
    return pod


def _template_of_master(worker: Mapping[str, Any]) -> _Item:
    agent = worker["containers"][0]
    resources = {"requests": _REQUESTS}
    # A quota of limits refuses pods without any.
    if (agent.get("resources") or {}).get("limits"):
        resources["limits"] = _LIMITS
    container = {key: agent[key] for key in _TAKEN if key in agent} | {
        "name": "master",
        "command": ["python", "-m", "drivetrain_cloud.kubernetes.master"],
        "resources": resources,
    }
    taken = {key: worker[key] for key in _POD_TAKEN if key in worker}
    return {"spec": {**taken, "containers": [container]}}


def template_hash(job: Mapping[str, Any]) -> str:
    """Returns what tells one template of workers from another one."""
    text = json.dumps(job["spec"]["template"], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_MASTER_SECRETS = (
    ("DRIVETRAIN_ELASTIC_TOKEN", "token"),
    ("DRIVETRAIN_ELASTIC_TLS_CERTIFICATE_PEM", "tls.crt"),
    ("DRIVETRAIN_ELASTIC_TLS_KEY_PEM", "tls.key"),
)


def worker_pod(
    job: Mapping[str, Any], spec: JobSpec, number: int, market: Market, address: str
) -> _Item:
    """Returns the pod of a worker.

    Args:
        job: The job.
        spec: What it says.
        number: Among the workers; no two have had the same.
        market: On what terms its node is there.
        address: Of the service of the master.
    """
    name = f"{job['metadata']['name']}-worker-{number}"
    labels = {**labels_of(job, "worker"), NUMBER_LABEL: str(number)}
    if spec.is_spot:
        labels[MARKET_LABEL] = market.value
    pod = _pod(job, name, spec.template, labels)
    pod["spec"]["restartPolicy"] = "Never"
    pod["metadata"].setdefault("annotations", {})[TEMPLATE_HASH] = template_hash(job)
    _put_agent_env(job, spec, pod, address)
    if spec.is_spot:
        is_cheap = market == Market.SPOT
        _select(pod, spec.spot_selector if is_cheap else spec.on_demand_selector)
    _leave_dead_nodes(pod)
    _put_gang(job, spec, pod)
    return pod


def role_pod(
    job: Mapping[str, Any], spec: JobSpec, role: RoleSpec, number: int, address: str
) -> _Item:
    """Returns the pod of another role.

    Args:
        job: The job.
        spec: What it says.
        role: Which one.
        number: Among those of the role, from 0.
        address: Of the service of the master.
    """
    name = f"{job['metadata']['name']}-{role.name}-{number}"
    labels = {**labels_of(job, role.name), NUMBER_LABEL: str(number)}
    pod = _pod(job, name, role.template, labels)
    pod["spec"].setdefault("restartPolicy", "OnFailure")
    _put_agent_env(job, spec, pod, address)
    return pod


def pod_group(job: Mapping[str, Any], spec: JobSpec) -> _Item:
    """Returns what tells Volcano how many pods a job needs at once.

    Args:
        job: The job.
        spec: What it says.
    """
    item: _Item = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": _metadata(job, job["metadata"]["name"], labels_of(job, "group")),
        "spec": {
            "minMember": spec.spot.least,
            "minResources": _resources_of(spec.template["spec"], spec.spot.least),
        },
    }
    if spec.queue:
        item["spec"]["queue"] = spec.queue
    return item


def _metadata(job: Mapping[str, Any], name: str, labels: dict[str, str]) -> _Item:
    return {
        "name": name,
        "namespace": job["metadata"]["namespace"],
        "labels": labels,
        "ownerReferences": [owner_of(job)],
    }


def _pod(
    job: Mapping[str, Any],
    name: str,
    template: Mapping[str, Any],
    labels: dict[str, str],
) -> _Item:
    data = _metadata(job, name, labels)
    given = template.get("metadata") or {}
    data["labels"] = {**(given.get("labels") or {}), **labels}
    if given.get("annotations"):
        data["annotations"] = dict(given["annotations"])
    spec = copy.deepcopy(template["spec"])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": data, "spec": spec}


def _put_agent_env(
    job: Mapping[str, Any], spec: JobSpec, pod: _Item, address: str
) -> None:
    # The operator, or replicas, says how many there are: agents must all say the same.
    least = 1 if spec.is_decided else spec.spot.least
    _put_env(
        pod["spec"]["containers"][0],
        {"name": "DRIVETRAIN_ELASTIC_MASTER", "value": join_address(address)},
        {
            "name": "DRIVETRAIN_ELASTIC_NNODES",
            "value": f"{least}:{_MOST_UNITS * spec.spot.unit}",
        },
        _field("DRIVETRAIN_ELASTIC_NODE", "metadata.name"),
        _field("DRIVETRAIN_ELASTIC_MACHINE", "spec.nodeName"),
        _secret(job, "DRIVETRAIN_ELASTIC_TOKEN", "token"),
        _secret(job, "DRIVETRAIN_ELASTIC_TLS_CA_PEM", "ca.crt"),
    )


def join_address(host: str, port: int = MASTER_PORT) -> str:
    """Returns the address of a host, and a port of it.

    Example:
        >>> join_address("10.0.0.1"), join_address("fd00::1")
        ('10.0.0.1:29400', '[fd00::1]:29400')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _resources_of(pod: Mapping[str, Any], count: int) -> dict[str, str]:
    """Returns what so many pods ask for."""
    amounts = {name: count * one for name, one in requests_of(pod).items()}
    return {
        name: str(int(one)) if one == int(one) else f"{round(one * 1000)}m"
        for name, one in amounts.items()
    }


def requests_of(pod: Mapping[str, Any]) -> dict[str, float]:
    """Returns what the containers of a pod ask for, in CPUs, bytes and pieces.

    Args:
        pod: Its spec.

    Raises:
        ProgramError: An amount is no quantity.
    """
    total: dict[str, float] = defaultdict(float)
    for one in pod.get("containers") or ():
        resources = one.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for what, amount in asked.items():
            total[what] += read_quantity(amount)
    return dict(total)


def _put_env(container: _Item, *variables: _Item) -> None:
    ours = {one["name"] for one in variables}
    given = [one for one in container.get("env") or () if one["name"] not in ours]
    container["env"] = [*variables, *given]


def _field(name: str, path: str) -> _Item:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _secret(job: Mapping[str, Any], name: str, key: str) -> _Item:
    source = {"name": master_name(job), "key": key}
    return {"name": name, "valueFrom": {"secretKeyRef": source}}


def refers_to_secret(pod: Mapping[str, Any], name: str) -> bool:
    """Whether the first container of a pod takes variables from a secret.

    Args:
        pod: The pod.
        name: Of the secret.
    """
    variables = pod["spec"]["containers"][0].get("env") or ()
    return any(
        ((one.get("valueFrom") or {}).get("secretKeyRef") or {}).get("name") == name
        for one in variables
    )


def _select(pod: _Item, selector: Mapping[str, str]) -> None:
    if selector:
        pod["spec"].setdefault("nodeSelector", {}).update(selector)


def _leave_dead_nodes(pod: _Item) -> None:
    """Gives a node that does not answer up after seconds, where minutes are usual."""
    tolerations = pod["spec"].setdefault("tolerations", [])
    known = {one.get("key") for one in tolerations}
    for name in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{name}"
        if key not in known:
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 20,
                }
            )


def _put_gang(job: Mapping[str, Any], spec: JobSpec, pod: _Item) -> None:
    """Lets a scheduler start pods together; each knows the group by its own labels."""
    name = job["metadata"]["name"]
    data = pod["metadata"]
    if spec.gang == Gang.VOLCANO:
        pod["spec"].setdefault("schedulerName", "volcano")
        data.setdefault("annotations", {})[_GROUP] = name
    elif spec.gang == Gang.KUEUE:
        data["labels"]["kueue.x-k8s.io/queue-name"] = spec.queue
        data["labels"]["kueue.x-k8s.io/pod-group-name"] = name
        data.setdefault("annotations", {})["kueue.x-k8s.io/pod-group-total-count"] = (
            str(spec.replicas)
        )
