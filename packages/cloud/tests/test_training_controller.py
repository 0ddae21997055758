"""TrainingJobs run beside the operator, with the rights of its own account."""

from __future__ import annotations

import asyncio
import contextlib
import io

import pytest
import yaml
from drivetrain_cluster_double import ClusterDouble, Fault, StatusError
from operator_samples import (
    RunningOperator,
    account,
    live,
    names,
    of_the_double,
    pods_of,
    status,
)
from training_samples import scaler, training_job

from drivetrain_cloud.cli import main
from drivetrain_cloud.kubernetes.operator import Operator
from drivetrain_cloud.kubernetes.training_job.controller import TrainingJobController

pytestmark = pytest.mark.extra


def written():
    """Returns what the command writes for a cluster."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert (
            main(["operator", "--definitions", "--manifests", "--training-jobs"]) == 0
        )
    return list(yaml.safe_load_all(text.getvalue()))


def test_command_writes_definitions_rights_and_a_deployment_that_has_them():
    items = {(one["kind"], one["metadata"]["name"]): one for one in written()}
    kinds = {
        one["spec"]["names"]["kind"]
        for (kind, _), one in items.items()
        if kind == "CustomResourceDefinition"
    }
    assert kinds == {"ElasticJob", "TrainingJob", "ScaleIn", "ScaleOut"}
    assert ("ClusterRoleBinding", "drivetrain-operator-training-jobs") in items
    pod = items["Deployment", "drivetrain-operator"]["spec"]["template"]["spec"]
    assert "--training-jobs" in pod["containers"][0]["command"]


class Both:
    """An operator of ElasticJobs, and one of TrainingJobs beside it."""

    def __init__(self, client, **options):
        self._parts = [Operator(client, **options), TrainingJobController(client)]

    async def run(self):
        async with asyncio.TaskGroup() as group:
            for one in self._parts:
                group.create_task(one.run())


@pytest.fixture(scope="module")
def shared():
    with ClusterDouble(nodes=2, run="simulated") as cluster:
        # With all that the command would write, and nothing else.
        cluster.apply(of_the_double(written()))
        yield cluster


@pytest.fixture
def cluster(shared):
    yield shared
    for kind in ("ScaleIn", "ScaleOut", "TrainingJob"):
        for one in shared.list(kind):
            shared.delete(kind, one["metadata"]["name"])
    shared.wait_for(lambda: not shared.list("ElasticJob"), 60)
    shared.wait_for(lambda: not shared.list("Pod"), 60)


@pytest.fixture
def operator(cluster):
    # What is left of a test goes only while somebody looks after it.
    with RunningOperator(account(cluster), make=Both):
        yield
        for one in cluster.list("TrainingJob"):
            cluster.delete("TrainingJob", one["metadata"]["name"])
        cluster.wait_for(lambda: not cluster.list("ElasticJob"), 60)


def phase(cluster, kind, name, wanted, timeout_s=60):
    found = lambda: (cluster.get(kind, name) or {}).get("status", {})
    cluster.wait_for(lambda: found().get("phase") == wanted, timeout_s)
    return found()


def hosts(cluster):
    text = cluster.get("ConfigMap", "job-config")["data"]["discover_hosts.sh"]
    return text.split("\n")[1:-1]


def test_job_is_trained_scaled_and_gone_with_all_it_had(cluster, operator):
    job = training_job(replicas=2, worker={"minReplicas": 1, "maxReplicas": 3})
    cluster.apply(job)
    told = phase(cluster, "TrainingJob", "job", "Running")
    assert names(pods_of(cluster)) == ["job-worker-0", "job-worker-1"]
    image = lambda one: one["spec"]["containers"][0]["image"]
    assert {image(one) for one in pods_of(cluster, role="master")} == {"launcher"}
    cluster.wait_for(
        lambda: hosts(cluster) == ["echo job-worker-0:1", "echo job-worker-1:1"]
    )
    told = cluster.get("TrainingJob", "job")["status"]
    assert told["currentWorkers"] == ["job-worker-0", "job-worker-1"]
    assert told["startTime"]

    cluster.apply(scaler("ScaleOut", "more", toAdd={"count": 1}))
    more = phase(cluster, "ScaleOut", "more", "ScaleSucceeded")
    assert more["addPods"] == ["job-worker-2"]
    assert len(hosts(cluster)) == 3

    cluster.apply(scaler("ScaleIn", "less", toDelete={"podNames": ["job-worker-0"]}))
    less = phase(cluster, "ScaleIn", "less", "ScaleSucceeded")
    assert less["toDeletePods"] == ["job-worker-0"]
    assert names(live(pods_of(cluster))) == ["job-worker-1", "job-worker-2"]
    cluster.wait_for(
        lambda: hosts(cluster) == ["echo job-worker-1:1", "echo job-worker-2:1"]
    )
    # What the manifest says is not what it was scaled to, and does not undo it.
    cluster.apply(job)
    phase(cluster, "TrainingJob", "job", "Running")
    assert cluster.get("ElasticJob", "job")["spec"]["replicas"] == 2

    cluster.delete("TrainingJob", "job")
    cluster.wait_for(lambda: not cluster.list("ElasticJob"), 60)
    cluster.wait_for(lambda: not cluster.list("Pod"), 60)
    cluster.wait_for(lambda: cluster.get("ConfigMap", "job-config") is None)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(verb="create", resource="elasticjobs", status=500, when="after"),
        Fault(verb="create", resource="configmaps", drop=True, when="after"),
        Fault(verb="patch", resource="configmaps", status=500, times=2),
        Fault(verb="patch", resource="elasticjobs", drop=True, when="after", times=2),
        Fault(verb="update", resource="scaleouts/status", status=409, times=2),
        Fault(verb="watch", resource="scaleouts", drop=True, after_events=1),
    ],
    ids=lambda one: f"{one.verb}-{one.resource}",
)
def test_what_the_server_does_wrong_is_survived(cluster, operator, fault):
    cluster.faults.add(fault)
    cluster.apply(training_job(worker={"minReplicas": 1}))
    cluster.apply(scaler("ScaleOut", "more", toAdd={"count": 1}))
    phase(cluster, "ScaleOut", "more", "ScaleSucceeded")
    cluster.apply(scaler("ScaleIn", "less", toDelete={"count": 2}))
    phase(cluster, "ScaleIn", "less", "ScaleSucceeded")
    cluster.wait_for(lambda: hosts(cluster) == ["echo job-worker-0:1"])
    assert names(live(pods_of(cluster))) == ["job-worker-0"]
    cluster.faults.clear()


def test_scaling_of_no_job_and_of_an_ended_one_fails(cluster, operator):
    cluster.apply(scaler("ScaleOut", "early", toAdd={"count": 1}))
    told = phase(cluster, "ScaleOut", "early", "ScaleFailed")
    rows = {one["type"]: one for one in told["conditions"]}
    assert rows["ScaleFailed"]["reason"] == "NoSuchJob"
    cluster.apply(training_job(replicas=1, launch="horovodrun python train.py"))
    phase(cluster, "TrainingJob", "job", "Running")
    cluster.finish("job-worker-0", "default", exit_code=0)
    phase(cluster, "TrainingJob", "job", "Succeeded")
    cluster.apply(scaler("ScaleIn", "late", toDelete={"count": 1}))
    told = phase(cluster, "ScaleIn", "late", "ScaleFailed")
    rows = {one["type"]: one for one in told["conditions"]}
    assert rows["ScaleFailed"]["message"] == "the job has ended: Succeeded"


def test_job_of_a_name_that_is_taken_is_told(cluster, operator):
    stranger = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "job-config", "namespace": "default"},
        "data": {"mine": "yes"},
    }
    cluster.apply(stranger)
    cluster.apply(training_job())
    cluster.wait_for(
        lambda: any(
            "does not belong to the job" in (one.get("note") or one["message"])
            for one in cluster.list("Event")
            if one.get("reason") == "CannotReconcile"
        )
    )
    assert not cluster.list("ElasticJob")
    assert status(cluster) == {}
    cluster.delete("TrainingJob", "job")
    cluster.delete("ConfigMap", "job-config")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"worker": {"replicas": 0}}, "spec.etReplicaSpecs.worker.replicas"),
        ({"worker": {"minReplicas": 3}}, "spec.etReplicaSpecs.worker.minReplicas"),
        ({"worker": {"minReplicas": 0}}, "spec.etReplicaSpecs.worker.minReplicas"),
        ({"worker": {"maxReplicas": 1}}, "spec.etReplicaSpecs.worker.replicas"),
        ({"worker": {"restartPolicy": "Soon"}}, "worker.restartPolicy"),
        ({"worker": {"template": {"spec": {}}}}, "worker.template.spec.containers"),
        ({"launcher": {"replicas": 2}}, "spec.etReplicaSpecs.launcher.replicas"),
        ({"launcher": {"template": None}}, "spec.etReplicaSpecs.launcher.template"),
        ({"launcherAttachMode": "telnet"}, "spec.launcherAttachMode"),
        ({"slotsPerWorker": 0}, "spec.slotsPerWorker"),
        ({"cleanPodPolicy": "Some"}, "spec.cleanPodPolicy"),
        ({"restartPolicy": "Always"}, "spec.restartPolicy"),
        ({"backoffLimit": -1}, "spec.backoffLimit"),
        ({"backoffLimit": "six"}, "spec.backoffLimit"),
    ],
)
def test_wrong_job_is_refused_with_its_field(cluster, spec, field):
    refused(cluster, training_job(**spec), field)
    assert not cluster.list("TrainingJob")


def refused(cluster, item, field):
    with pytest.raises(StatusError) as caught:
        cluster.apply(item)
    assert caught.value.code == 422
    assert field in str(caught.value)


def test_long_name_is_refused(cluster):
    with pytest.raises(StatusError, match="at most 40 characters"):
        cluster.apply(training_job("j" * 41))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"slotsPerWorker": 2}, "spec.slotsPerWorker"),
        ({"worker": {"minReplicas": 1}}, "spec.etReplicaSpecs.worker.minReplicas"),
        ({"replicas": 1}, "spec.etReplicaSpecs.worker.replicas"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_its_field(cluster, spec, field):
    cluster.apply(training_job())
    refused(cluster, training_job(**spec), field)


@pytest.mark.parametrize(
    ("kind", "spec", "field"),
    [
        ("ScaleIn", {}, "spec.toDelete"),
        ("ScaleIn", {"toDelete": {}}, "spec.toDelete"),
        ("ScaleIn", {"toDelete": {"count": 0}}, "spec.toDelete.count"),
        ("ScaleIn", {"toDelete": {"podNames": []}}, "spec.toDelete.podNames"),
        (
            "ScaleIn",
            {"toDelete": {"podNames": ["a", "a"]}},
            "spec.toDelete.podNames[1]",
        ),
        (
            "ScaleIn",
            {"toDelete": {"count": 1, "podNames": ["a"]}},
            "either count or podNames",
        ),
        ("ScaleIn", {"toDelete": {"count": 1}, "script": "ls"}, "spec.script"),
        (
            "ScaleIn",
            {"toDelete": {"count": 1}, "env": [{"name": "A", "value": "1"}]},
            "spec.env",
        ),
        ("ScaleIn", {"toDelete": {"count": 1}, "timeout": 0}, "spec.timeout"),
        ("ScaleOut", {}, "spec.toAdd"),
        ("ScaleOut", {"toAdd": {}}, "spec.toAdd.count"),
        ("ScaleOut", {"toAdd": {"count": -1}}, "spec.toAdd.count"),
        ("ScaleOut", {"toAdd": {"count": 1}, "script": "ls"}, "spec.script"),
        ("ScaleOut", {"toAdd": {"count": 1}, "selector": {}}, "spec.selector.name"),
    ],
)
def test_wrong_scaling_is_refused_with_its_field(cluster, kind, spec, field):
    refused(cluster, scaler(kind, **spec), field)


def test_scaling_cannot_be_changed(cluster):
    cluster.apply(scaler("ScaleOut", toAdd={"count": 1}))
    refused(cluster, scaler("ScaleOut", toAdd={"count": 2}), "cannot be changed")
