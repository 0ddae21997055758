"""What a cluster does to the pods of a job is read from them, and said in its status."""

from __future__ import annotations

import copy

import pytest
from test_operator_decisions import a_job, a_worker, deleted, done, made, seen

from drivetrain_cloud.kubernetes.job_spec import parse_job
from drivetrain_cloud.kubernetes.observed import Observed
from drivetrain_cloud.kubernetes.operator_actions import (
    CreateObject,
    DeleteObject,
    SetStatus,
)
from drivetrain_cloud.kubernetes.pod_templates import master_pod, worker_pod
from drivetrain_cloud.kubernetes.pods import has_ended, is_ready
from drivetrain_cloud.kubernetes.reconcile import reconcile
from drivetrain_cloud.spot.capacity import Market
from drivetrain_cloud.spot.job_control import JobView


def status_of(plan):
    return done(plan, SetStatus)[-1].status


def conditions_of(plan):
    return {one["type"]: one for one in status_of(plan)["conditions"]}


def beside(pod, code, *, phase="Running", other=None):
    """A pod whose agent has ended, while another container runs on or has ended."""
    end = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
    pod["status"] = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {"name": "logs", "ready": True, "state": other or {"running": {}}},
            {"name": "worker", "ready": False, "state": end},
        ],
    }
    return pod


def test_worker_has_ended_when_its_agent_has_whatever_runs_beside_it():
    job = a_job(replicas=1)
    plan = reconcile(seen(job, beside(a_worker(job, 0), 0)), 1.0)
    assert status_of(plan)["phase"] == "Succeeded"
    plan = reconcile(seen(job, beside(a_worker(job, 0), 3)), 1.0)
    assert status_of(plan)["failures"] == 1
    assert made(plan) == ["job-worker-1"]
    # What the pod as a whole is called says nothing of the agent.
    other = {"terminated": {"exitCode": 9}}
    pod = beside(a_worker(job, 0), 0, phase="Failed", other=other)
    assert status_of(reconcile(seen(job, pod), 1.0))["phase"] == "Succeeded"


def test_agent_that_is_started_again_has_not_ended():
    pod = beside(a_worker(a_job(), 0), 1)
    for policy, code, ended in (
        ("Never", 0, True),
        ("OnFailure", 1, False),
        ("OnFailure", 0, True),
        ("Always", 0, False),
    ):
        pod["spec"]["restartPolicy"] = policy
        state = pod["status"]["containerStatuses"][1]["state"]
        state["terminated"]["exitCode"] = code
        assert has_ended(pod) == ended


def test_worker_is_ready_when_its_agent_is():
    pod = a_worker(a_job(), 0)
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    ours = {"name": "worker", "ready": True}
    pod["status"]["containerStatuses"] = [{"name": "logs", "ready": False}, ours]
    assert is_ready(pod)
    ours["ready"] = False
    assert not is_ready(pod)


def test_pods_of_an_ended_job_go_while_anything_runs_in_them():
    job = a_job(replicas=1, status={"phase": "Succeeded"})
    pods = [beside(a_worker(job, 0), 0), a_worker(job, 1, "Succeeded")]
    assert deleted(reconcile(seen(job, *pods), 1.0)) == ["job-master", "job-worker-0"]


def test_worker_that_somebody_deletes_is_no_end_of_training():
    job = a_job(replicas=2)
    gone = a_worker(job, 0, "Succeeded")
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    plan = reconcile(seen(job, gone, a_worker(job, 1, "Failed")), 1.0)
    assert status_of(plan)["phase"] != "Succeeded"
    assert status_of(plan)["failures"] == 1
    assert made(plan) == ["job-worker-2", "job-worker-3"]


def test_success_names_the_workers_that_have_failed():
    job = a_job(replicas=2)
    pods = [a_worker(job, 0, "Succeeded"), beside(a_worker(job, 1), 3)]
    row = conditions_of(reconcile(seen(job, *pods), 1.0))["Succeeded"]
    words = (
        "1 workers have ended with success, and 1 have failed, job-worker-1 with Error"
    )
    assert row["message"].startswith(words)


@pytest.mark.parametrize("reason", ["SchedulingGated", "", "Unschedulable"])
def test_only_a_pod_that_no_node_takes_makes_others_yield(reason):
    from drivetrain_cloud.kubernetes.pods import is_pending_unscheduled

    pod = a_worker(a_job(), 0, "Pending")
    row = {"type": "PodScheduled", "status": "False", "reason": reason}
    pod["status"]["conditions"] = [row]
    assert is_pending_unscheduled(pod) == (reason == "Unschedulable")


def test_job_takes_no_place_that_others_wait_for_and_keeps_its_least():
    job = a_job(replicas=4, minReplicas=2)
    plan = reconcile(seen(job, a_worker(job, 0), is_held=True), 1.0)
    assert made(plan) == ["job-worker-1"]
    pods = [a_worker(job, number) for number in range(3)]
    assert not made(reconcile(seen(job, *pods, is_held=True), 1.0))


# ---- the master ----


def test_master_has_nothing_of_a_worker_but_its_image_and_its_rights():
    template = {
        "metadata": {"labels": {"queue": "gpus"}},
        "spec": {
            "hostNetwork": True,
            "activeDeadlineSeconds": 60,
            "initContainers": [{"name": "fetch"}],
            "nodeSelector": {"gpu": "h100"},
            "serviceAccountName": "trainer",
            "imagePullSecrets": [{"name": "registry"}],
            "securityContext": {"runAsUser": 7},
            "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
            "containers": [
                {
                    "name": "worker",
                    "image": "trainer:1",
                    "securityContext": {"privileged": False},
                    "lifecycle": {"preStop": {}},
                    "startupProbe": {},
                    "ports": [{"containerPort": 1}],
                    "resources": {"limits": {"cpu": "9", "nvidia.com/gpu": "8"}},
                },
                {"name": "logs", "image": "shipper"},
            ],
        },
    }
    job = a_job(template=template)
    pod = master_pod(job, parse_job(job))
    (container,) = pod["spec"]["containers"]
    assert set(pod["metadata"]["labels"]) == {
        "drivetrain.dev/job",
        "drivetrain.dev/role",
    }
    assert pod["spec"].keys() == {
        *("serviceAccountName", "imagePullSecrets", "securityContext", "restartPolicy"),
        *("containers", "tolerations", "volumes"),
    }
    assert container["image"] == "trainer:1"
    assert container["securityContext"] == {"privileged": False}
    assert not {"lifecycle", "startupProbe"} & container.keys()
    # A quota wants requests, and limits where the workers have some.
    for kind in ("requests", "limits"):
        assert container["resources"][kind].keys() == {"cpu", "memory"}
    assert [one["containerPort"] for one in container["ports"]] == [29400]


def test_journal_lies_on_a_volume_that_outlives_the_container():
    job = a_job()
    pod = master_pod(job, parse_job(job))
    (container,) = pod["spec"]["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    (mount,) = container["volumeMounts"]
    assert env["DRIVETRAIN_ELASTIC_JOURNAL"].startswith(f"{mount['mountPath']}/")
    assert pod["spec"]["volumes"] == [{"name": mount["name"], "emptyDir": {}}]
    job = a_job(master={"journal": "redis://r:1/0?job=j"})
    assert "volumes" not in master_pod(job, parse_job(job))["spec"]


def test_address_of_the_master_is_one_in_either_family():
    job = a_job()
    for host, told in (
        ("10.0.0.1", "10.0.0.1:29400"),
        ("fd00::2a", "[fd00::2a]:29400"),
    ):
        pod = worker_pod(job, parse_job(job), 0, Market.SPOT, host)
        env = {
            one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]
        }
        assert env["DRIVETRAIN_ELASTIC_MASTER"] == told


def node(ready):
    return {"status": {"conditions": [{"type": "Ready", "status": ready}]}}


@pytest.mark.parametrize(
    ("nodes", "is_forced"),
    [({}, True), ({"n": node("Unknown")}, True), ({"n": node("True")}, False)],
)
def test_master_on_a_node_that_is_gone_is_let_go_of_by_force(nodes, is_forced):
    job = a_job()
    observed = seen(job, a_worker(job, 0), nodes=nodes)
    master = observed.pods[0]
    master["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    master["spec"]["nodeName"] = "n"
    plan = reconcile(observed, 1.0)
    gone = [one for one in done(plan, DeleteObject) if one.name == "job-master"]
    assert [one.is_forced for one in gone] == [True] * is_forced
    row = conditions_of(plan)["MasterReachable"]
    assert (row["status"], row["reason"]) == ("False", "NotReady")


def test_master_that_does_not_answer_is_said_and_its_spot_workers_are_replaced():
    status = {"phase": "Running", "lastPodNumber": 2}
    job = a_job(replicas=3, minReplicas=1, spot={"enabled": True}, status=status)
    pods = [a_worker(job, 0), a_worker(job, 1)]
    plan = reconcile(seen(job, *pods, master_error="it does not answer: no"), 1.0)
    assert made(plan) == ["job-worker-3"]
    row = conditions_of(plan)["MasterReachable"]
    assert (row["reason"], row["message"]) == ("NoAnswer", "it does not answer: no")
    # Somebody waits for its place.
    assert not made(reconcile(seen(job, *pods, is_held=True), 1.0))


# ---- what is written down ----


def test_job_that_has_ended_goes_by_the_time_of_its_end():
    status = {"phase": "Succeeded", "completionTime": "1970-01-01T00:01:40Z"}
    job = a_job(status=status, runPolicy={"ttlSecondsAfterFinished": 12})
    early = reconcile(seen(job, wall_s=111.0), 5.0)
    assert "job" not in deleted(early)
    assert early.look_again_s == 6.0
    assert "job" in deleted(reconcile(seen(job, wall_s=112.0), 5.0))


def test_leaving_worker_has_until_the_time_that_stands_on_its_pod():
    job = a_job(replicas=1)
    pod = a_worker(job, 1, leaving=True)
    by = "1970-01-01T00:00:20Z"
    pod["metadata"]["annotations"]["drivetrain.dev/leave-by"] = by
    plan = reconcile(seen(job, a_worker(job, 0), pod, wall_s=19.0), 1.0)
    assert (deleted(plan), plan.look_again_s) == ([], 2.0)
    assert deleted(reconcile(seen(job, a_worker(job, 0), pod, wall_s=20.0), 1.0))


def test_reason_of_a_pod_that_waits_is_said():
    job = a_job(replicas=2)
    pods = [a_worker(job, 0), a_worker(job, 1, "Pending")]
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    pods[1]["status"]["containerStatuses"] = [{"state": {"waiting": waiting}}]
    row = conditions_of(reconcile(seen(job, *pods), 1.0))["PodsStarted"]
    words = "job-worker-1: ImagePullBackOff: no such image"
    assert (row["status"], row["reason"]) == ("False", "ImagePullBackOff")
    assert row["message"] == words
    waiting["reason"] = "ContainerCreating"
    row = conditions_of(reconcile(seen(job, *pods), 1.0))["PodsStarted"]
    assert row["status"] == "True"


def waits(after, *, since="1970-01-01T00:00:10Z"):
    rows = [{"type": "Running", "status": "False", "lastTransitionTime": since}]
    spot = {"maxWaitSeconds": 30, "afterMaxWait": after}
    job = a_job(status={"phase": "Waiting", "conditions": rows}, spot=spot)
    job["metadata"]["creationTimestamp"] = "1970-01-01T00:00:01Z"
    return job


def test_limit_of_the_wait_holds_for_jobs_without_spot_nodes():
    for after, phase in (("Fail", "Failed"), ("Suspend", "Suspended")):
        job = waits(after)
        pod = a_worker(job, 0, "Pending")
        plan = reconcile(seen(job, pod, wall_s=40.0), 1.0)
        assert (status_of(plan)["phase"], plan.look_again_s) == ("Waiting", 2.0)
        plan = reconcile(seen(job, pod, wall_s=41.0), 1.0)
        assert status_of(plan)["phase"] == phase
        assert conditions_of(plan)[phase]["reason"] == "MaxWaitExceeded"
        # Whoever has only now made its workers waits for them.
        pod["metadata"]["creationTimestamp"] = "1970-01-01T00:00:20Z"
        plan = reconcile(seen(job, pod, wall_s=50.0), 1.0)
        assert (status_of(plan)["phase"], plan.look_again_s) == ("Waiting", 2.0)
        assert status_of(reconcile(seen(job, wall_s=1e6), 1.0))["phase"] == "Waiting"
        # One that may make none does not wait for ever.
        row = {"type": "Reconciled", "status": "False"}
        job["status"]["conditions"].append(row)
        assert status_of(reconcile(seen(job, wall_s=1e6), 1.0))["phase"] == phase
    # One that says no limit waits for ever.
    job = waits("Fail")
    del job["spec"]["spot"]
    plan = reconcile(seen(job, a_worker(job, 0, "Pending"), wall_s=1e6), 1.0)
    assert status_of(plan)["phase"] == "Waiting"
    row = conditions_of(reconcile(Observed(job=waits("OnDemand")), 1.0))
    assert "needs spot.enabled" in row["Invalid"]["message"]


def test_other_template_makes_all_workers_anew():
    job = a_job(replicas=2)
    pods = [a_worker(job, 0), a_worker(job, 1)]
    changed = copy.deepcopy(job)
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "trainer:2"
    plan = reconcile(seen(changed, *pods), 1.0)
    assert sorted(deleted(plan)) == ["job-master", "job-worker-0", "job-worker-1"]
    assert not made(plan)
    assert conditions_of(plan)["Suspended"]["reason"] == "TemplateChanged"
    assert made(reconcile(seen(changed), 1.0)) == ["job-worker-0", "job-worker-1"]
    # Pods that an older operator has made say nothing of it.
    for pod in pods:
        del pod["metadata"]["annotations"]
    assert not deleted(reconcile(seen(changed, *pods), 1.0))


def unplaced(job, number, since):
    pod = a_worker(job, number, "Pending")
    row = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pod["status"]["conditions"] = [{**row, "lastTransitionTime": since}]
    return pod


@pytest.mark.parametrize("spot", [False, True])
def test_worker_beyond_replicas_that_no_node_takes_is_withdrawn(spot):
    job = a_job(maxReplicas=4, minReplicas=1, spot={"enabled": spot})
    job["status"] = {"phase": "Running"}
    here = [a_worker(job, 0), a_worker(job, 1)]
    view = JobView() if spot else None
    pods = [*here, unplaced(job, 2, "1970-01-01T00:00:05Z")]
    plan = reconcile(seen(job, *pods, view=view, wall_s=14.0), 1.0)
    assert not deleted(plan)
    plan = reconcile(seen(job, *pods, view=view, wall_s=15.0), 1.0)
    assert deleted(plan) == ["job-worker-2"]
    # Its place is not taken again soon, whatever looks idle.
    job["status"] = status_of(plan)
    options = {"view": view, "offered": 2}
    assert not made(reconcile(seen(job, *here, wall_s=300.0, **options), 1.0))
    # One of those that are asked for is waited for.
    pods = [here[0], unplaced(job, 1, "1970-01-01T00:00:05Z")]
    assert not deleted(reconcile(seen(job, *pods, view=view, wall_s=99.0), 1.0))


def test_spot_worker_that_others_stand_in_for_is_waited_for():
    job = a_job(minReplicas=1, spot={"enabled": True}, status={"phase": "Running"})
    dear = worker_pod(job, parse_job(job), 2, Market.ON_DEMAND, "10.0.0.1")
    dear["metadata"]["uid"], dear["status"] = "u", {"phase": "Running"}
    long_ago = "1970-01-01T00:00:05Z"
    pods = [a_worker(job, 0), unplaced(job, 1, long_ago), dear]
    assert not deleted(reconcile(seen(job, *pods, view=JobView(), wall_s=99.0), 1.0))


def test_group_of_volcano_is_there_before_any_pods():
    job = a_job(runPolicy={"gang": "Volcano"})
    plan = reconcile(seen(job, a_worker(job, 0)), 1.0)
    kinds = [(one.kind, one.is_kept) for one in done(plan, CreateObject)]
    assert kinds == [("PodGroup", True), ("Pod", False)]


def test_job_that_is_deleted_says_so_while_its_pods_end():
    job = a_job(status={"phase": "Running", "failures": 1})
    job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    plan = reconcile(seen(job, a_worker(job, 0)), 1.0)
    assert deleted(plan) == ["job-master", "job-worker-0"]
    told = {"phase": "Terminating", "failures": 1, "conditions": []}
    assert status_of(plan) == {key: told[key] for key in ("phase", "failures")}
    job["status"] = told
    assert not done(reconcile(seen(job, a_worker(job, 0)), 1.0), SetStatus)
