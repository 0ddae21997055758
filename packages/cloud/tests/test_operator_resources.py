"""What workers of an ElasticJob ask for follows what they use."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path

import pytest
from drivetrain_cluster_double import ClusterDouble
from operator_samples import (
    RunningOperator,
    account,
    definitions,
    elastic_job,
    manifests,
    pods_of,
    status,
)
from test_operator_decisions import a_job, a_worker, done, seen, told

from drivetrain_cloud.kubernetes.job_spec import parse_job
from drivetrain_cloud.kubernetes.observed import Memory
from drivetrain_cloud.kubernetes.operator_actions import CreateObject, SetStatus
from drivetrain_cloud.kubernetes.reconcile import reconcile
from drivetrain_cloud.kubernetes.worker_fit import fit_workers
from drivetrain_cloud.spot.job_control import JobView, NodeUse
from drivetrain_cloud.spot.master_job import MasterJob
from drivetrain_core import ProgramError
from drivetrain_elastic._agent._diagnostician import Diagnostician
from drivetrain_elastic._agent._node_watch import NodeWatch
from drivetrain_elastic._agent._output import Output
from drivetrain_elastic._agent._use import UseMeter
from drivetrain_elastic.protocol import messages as pb

GIB = 1 << 30
FIT = {"min": {"cpu": "500m", "memory": "1Gi"}, "max": {"cpu": 8, "memory": "8Gi"}}
POD = {
    "containers": [
        {
            "name": "worker",
            "resources": {
                "requests": {"cpu": "4", "memory": "4Gi"},
                "limits": {"memory": "6Gi"},
            },
        },
        {"name": "logs"},
    ]
}
OOM = {
    "containerStatuses": [
        {"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    ]
}


def fit_job(**options):
    options = {"replicas": 1, "fitResources": FIT, "template": {"spec": POD}, **options}
    return a_job(**options)


def resources_of(plan):
    pods = [one.item for one in done(plan, CreateObject) if one.kind == "Pod"]
    return [pod["spec"]["containers"][0]["resources"] for pod in pods]


def status_in(plan):
    return done(plan, SetStatus)[-1].status


def uses(cpus, memory_bytes):
    return JobView(
        present=frozenset({"job-worker-0"}),
        ready=frozenset({"job-worker-0"}),
        training=frozenset({"job-worker-0"}),
        uses={"job-worker-0": NodeUse(cpus, memory_bytes)},
    )


def test_killed_for_memory_asks_for_more_once_and_says_so():
    job = fit_job()
    killed = a_worker(job, 0, "Failed", **OOM)
    plan = reconcile(seen(job, killed), 10.0)
    assert resources_of(plan) == [
        {
            "requests": {"cpu": "4000m", "memory": "6144Mi"},
            "limits": {"memory": "9216Mi"},
        }
    ]
    fitted = status_in(plan)["workerResources"]
    assert fitted["memory"] == "6144Mi"
    assert fitted["reason"] == "memory 4.0 -> 6.0 GiB: killed for memory at 4.0 GiB"
    assert "WorkerResources" in told(plan)
    # The operator that comes next knows no more than the cluster does.
    job["status"] = status_in(plan)
    again = fit_workers(seen(job, killed), parse_job(job), 20.0)
    assert again.status == fitted
    assert not again.events


def test_bound_is_kept_and_said():
    job = fit_job(fitResources={"min": FIT["min"], "max": {"cpu": 8, "memory": "4Gi"}})
    plan = reconcile(seen(job, a_worker(job, 0, "Failed", **OOM)), 10.0)
    assert resources_of(plan)[0]["requests"]["memory"] == "4096Mi"
    assert "WorkerResources" in told(plan)


@pytest.mark.parametrize(
    ("use", "wanted"),
    [
        ((1.0, GIB), {"cpu": "1250m", "memory": "1280Mi"}),
        ((3.9, 3 * GIB), {"cpu": "6000m", "memory": "4096Mi"}),
        ((3.5, 3 * GIB), {"cpu": "4000m", "memory": "4096Mi"}),
        ((0.0, 1 << 20), {"cpu": "500m", "memory": "1024Mi"}),
    ],
)
def test_requests_follow_use_after_five_windows(use, wanted):
    job, memory, changes = fit_job(), Memory(nonce="n"), 0
    for second in range(0, 400, 10):
        observed = seen(job, a_worker(job, 0), view=uses(*use), memory=memory)
        plan = reconcile(observed, float(second))
        memory = plan.memory
        changes += told(plan).count("WorkerResources")
        if done(plan, SetStatus):
            job["status"] = status_in(plan)
        if second < 300:
            assert job["status"]["workerResources"]["memory"] == "4096Mi"
        assert not resources_of(plan)
    found = job["status"]["workerResources"]
    assert {name: found[name] for name in wanted} == wanted
    assert changes == (wanted != {"cpu": "4000m", "memory": "4096Mi"})


def test_template_that_is_changed_begins_anew_and_without_bounds_nothing_changes():
    job = fit_job()
    plan = reconcile(seen(job, a_worker(job, 0, "Failed", **OOM)), 10.0)
    job["status"] = status_in(plan)
    edited = copy.deepcopy(job)
    requests = edited["spec"]["template"]["spec"]["containers"][0]["resources"]
    requests["requests"]["memory"] = "2Gi"
    found = fit_workers(seen(edited), parse_job(edited), 20.0)
    assert found.status["memory"] == "2048Mi"
    plain = a_job(template={"spec": POD})
    found = fit_workers(seen(plain), parse_job(plain), 20.0)
    assert found.status is None
    assert found.template == plain["spec"]["template"]


def test_kills_say_nothing_of_processors():
    job = fit_job(replicas=6)
    pods = [a_worker(job, number, "Failed", **OOM) for number in range(6)]
    plan = reconcile(seen(job, *pods), 10.0)
    assert status_in(plan)["workerResources"]["cpu"] == "4000m"


@pytest.mark.parametrize(
    ("most", "words"),
    [
        ({"cpu": "8", "memory": "512Mi"}, "memory_bytes needs 0 < least <= most"),
        ({"cpu": "x", "memory": "2Gi"}, "an amount is a number and a unit"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(most, words):
    with pytest.raises(ProgramError, match=words):
        parse_job(fit_job(fitResources={"min": FIT["min"], "max": most}))


# ---- on a cluster ----


def prepared(cluster):
    cluster.apply(definitions())
    cluster.apply(manifests())
    return cluster


@pytest.mark.extra
def test_pod_that_was_killed_for_memory_is_followed_by_a_larger_one():
    with (
        ClusterDouble(nodes=1, run="simulated") as cluster,
        RunningOperator(account(prepared(cluster))),
    ):
        job = elastic_job("fits", replicas=1)
        container = job["spec"]["template"]["spec"]["containers"][0]
        container["resources"] = {"requests": {"cpu": "1", "memory": "1Gi"}}
        job["spec"]["fitResources"] = FIT
        cluster.apply(job)
        ready = lambda: status(cluster, "fits").get("readyReplicas") == 1
        cluster.wait_for(ready)
        cluster.kill("fits-worker-0")
        cluster.wait_for(
            lambda: (
                [p["metadata"]["name"] for p in pods_of(cluster, "fits")]
                == ["fits-worker-1"]
            )
        )
        (pod,) = pods_of(cluster, "fits")
        asked = pod["spec"]["containers"][0]["resources"]["requests"]
        assert asked == {"cpu": "1000m", "memory": "1536Mi"}
        told_of = status(cluster, "fits")["workerResources"]
        assert "killed for memory at 1.0 GiB" in told_of["reason"]


# ---- what is used ----


def test_use_of_processes_grows_with_what_they_hold():
    meter = UseMeter(cgroup=Path("/nowhere"))
    before = meter.read()
    held = bytearray(64 << 20)
    sum(range(2_000_000))
    after = meter.read()
    assert after.memory_bytes - before.memory_bytes > 48 << 20
    assert before.cpus == 0.0
    assert 0.0 < after.cpus < 64.0
    assert len(held) == 64 << 20


def test_use_of_a_container_is_that_of_its_group(tmp_path):
    (tmp_path / "memory.current").write_text("5000\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 1000\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 1000000\nuser_usec 1\n")
    meter = UseMeter(cgroup=tmp_path)
    assert meter.read() == (0.0, 4000)
    (tmp_path / "cpu.stat").write_text("usage_usec 900000\n")
    assert meter.read().cpus == 0.0


def test_use_of_a_node_is_seen_by_whoever_asks_its_master():
    hardware = pb.Hardware(used_cpus=1.5, used_memory=3 << 30)
    node = pb.NodeStatus(node="a", hardware=hardware)

    class Client:
        def call(self, name, request):
            assert (name, request) == ("GetStatus", pb.StatusRequest())
            return pb.Status(nodes=[node])

    assert MasterJob(Client()).look().uses == {"a": NodeUse(1.5, 3 << 30)}


@pytest.mark.slow
def test_agent_reads_its_use(tmp_path):
    found = Diagnostician("n", str(tmp_path), Output(None))
    watch = NodeWatch(found, alert=[].append, is_training=lambda: False)

    async def main():
        running = asyncio.create_task(watch.run())
        while not watch.hardware().used_memory:
            await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(asyncio.wait_for(main(), 30))
    found.close()
    assert watch.hardware().used_memory > 1 << 20
