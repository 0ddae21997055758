"""What tests of TrainingJobs share: manifests as they are written for Horovod."""

from __future__ import annotations

import copy

RUN = "horovodrun -np 2 --min-np 1 --host-discovery-script /etc/edl/discover_hosts.sh"


def training_job(name="job", replicas=2, launch=f"{RUN} python train.py", **spec):
    """Returns a TrainingJob; `worker` and `launcher` are merged into its roles."""
    worker = {
        "replicas": replicas,
        "template": {"spec": {"containers": [{"name": "w", "image": "trainer"}]}},
        **spec.pop("worker", {}),
    }
    roles = {"worker": worker}
    if launch is not None:
        container = {
            "name": "l",
            "image": "launcher",
            "command": ["sh", "-c", launch],
        }
        pod = {"spec": {"containers": [container]}}
        roles["launcher"] = {"template": pod, **spec.pop("launcher", {})}
    return {
        "apiVersion": "kai.alibabacloud.com/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"etReplicaSpecs": roles, **spec},
    }


def scaler(kind, name="scaler", **spec):
    """Returns a ScaleIn or a ScaleOut; fields of `spec` as they are written."""
    return {
        "apiVersion": "kai.alibabacloud.com/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"name": "job"}, **spec},
    }


def stored(item, uid="1", **metadata):
    """Returns an object as a server would give it."""
    item = copy.deepcopy(item)
    item["metadata"] |= {"uid": uid, "resourceVersion": "7", "generation": 1}
    item["metadata"] |= metadata
    return item


def pod(number, *, job="job", ready=True, role="worker", **metadata):
    """Returns the pod of a worker, as a server would give it."""
    return {
        "metadata": {
            "name": f"{job}-{role}-{number}" if role == "worker" else f"{job}-{role}",
            "namespace": "default",
            "uid": f"pod-{number}",
            "labels": {
                "drivetrain.dev/job": job,
                "drivetrain.dev/training-job": job,
                "drivetrain.dev/role": role,
                "drivetrain.dev/number": str(number),
            },
            **metadata,
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(bool(ready))}],
        },
    }
