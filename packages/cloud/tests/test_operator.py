"""The operator keeps jobs as they are wanted, with the rights of its own account."""

from __future__ import annotations

import contextlib
import copy

import pytest
from drivetrain_cluster_double import ClusterDouble, Fault, StatusError
from operator_samples import (
    FakeTraining,
    RunningOperator,
    account,
    definitions,
    elastic_job,
    live,
    manifests,
    names,
    pods_of,
    status,
)

from drivetrain_cloud.kubernetes import operator as operator_module
from drivetrain_cloud.kubernetes.pods import has_condition
from drivetrain_cloud.kubernetes.pool_share import Share

pytestmark = pytest.mark.extra


@pytest.fixture(scope="module")
def shared():
    with ClusterDouble(nodes=4, run="simulated") as cluster:
        cluster.apply(definitions())
        cluster.apply(manifests())
        yield cluster


@pytest.fixture
def cluster(shared):
    yield shared
    shared.faults.clear()
    for job in shared.list("ElasticJob"):
        if job["metadata"].get("finalizers"):
            job = copy.deepcopy(job)
            job["metadata"]["finalizers"] = []
            job["metadata"].pop("managedFields", None)
            shared.apply(job)
        shared.delete("ElasticJob", job["metadata"]["name"])
    for kind in ("Pod", "Service", "Secret", "Event"):
        for one in shared.list(kind, namespace="default"):
            # What belonged to a job is being collected meanwhile.
            with contextlib.suppress(StatusError):
                shared.delete(kind, one["metadata"]["name"])
    shared.wait_for(lambda: not shared.list("Pod") + shared.list("Secret"))


@pytest.fixture
def operator(cluster):
    with RunningOperator(account(cluster)) as running:
        yield running


def phase(cluster, wanted, job="job"):
    cluster.wait_for(lambda: status(cluster, job).get("phase") == wanted, 60)


def scale(cluster, replicas, job="job"):
    item = copy.deepcopy(cluster.get("ElasticJob", job))
    item["metadata"] = {"name": job, "namespace": "default"}
    item["spec"]["replicas"] = replicas
    cluster.apply(item)


def num_live(cluster, job="job"):
    return len(live(pods_of(cluster, job)))


def running(cluster):
    pods = pods_of(cluster)
    return names(pod for pod in pods if pod["status"]["phase"] == "Running")


@pytest.mark.slow
def test_job_gets_its_pods_and_is_gone_with_them(cluster, operator):
    cluster.apply(elastic_job(replicas=3))
    phase(cluster, "Running")
    assert names(pods_of(cluster)) == [f"job-worker-{n}" for n in range(3)]
    assert names(pods_of(cluster, role="master")) == ["job-master"]
    told = status(cluster)
    assert (told["replicas"], told["readyReplicas"]) == (3, 3)
    assert told["selector"] == "drivetrain.dev/job=job,drivetrain.dev/role=worker"
    assert has_condition({"status": told}, "WorkersReady")
    cluster.delete("ElasticJob", "job")
    cluster.wait_for(lambda: not cluster.list("ElasticJob"))
    assert not cluster.list("Pod")
    cluster.wait_for(
        lambda: not any(cluster.list(kind) for kind in ("Service", "Secret"))
    )


@pytest.mark.slow
def test_replicas_follow_the_scale_up_and_down(cluster, operator):
    cluster.apply(elastic_job(replicas=2))
    phase(cluster, "Running")
    scale(cluster, 3)
    cluster.wait_for(lambda: num_live(cluster) == 3)
    scale(cluster, 1)
    cluster.wait_for(lambda: names(live(pods_of(cluster))) == ["job-worker-0"])
    phase(cluster, "Running")


def test_worker_that_failed_is_counted_once_and_replaced(cluster, operator):
    cluster.apply(elastic_job(replicas=2))
    phase(cluster, "Running")
    cluster.kill("job-worker-0")
    cluster.wait_for(
        lambda: names(live(pods_of(cluster))) == ["job-worker-1", "job-worker-2"]
    )
    cluster.wait_for(
        lambda: status(cluster)["failures"] == 1 and not status(cluster)["countedPods"]
    )


def test_worker_whose_node_is_gone_does_not_count(cluster, operator):
    cluster.add_node("short-lived", labels={"pool": "short"})
    job = elastic_job(replicas=1)
    job["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "short"}
    cluster.apply(job)
    phase(cluster, "Running")
    cluster.remove_node("short-lived")
    cluster.add_node("next", labels={"pool": "short"})
    cluster.wait_for(lambda: names(live(pods_of(cluster))) == ["job-worker-1"])
    phase(cluster, "Running")
    assert status(cluster)["failures"] == 0
    cluster.remove_node("next")


def test_job_that_fails_too_often_fails(cluster, operator):
    cluster.apply(elastic_job(replicas=1, runPolicy={"backoffLimit": 1}))
    phase(cluster, "Running")
    cluster.kill("job-worker-0")
    cluster.wait_for(lambda: running(cluster) == ["job-worker-1"])
    cluster.kill("job-worker-1")
    phase(cluster, "Failed")
    failed = next(c for c in status(cluster)["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "BackoffLimitExceeded"
    assert "backoffLimit is 1" in failed["message"]
    cluster.wait_for(lambda: not live(cluster.list("Pod")))
    # What has failed is kept for people to look at.
    assert "job-worker-1" in names(pods_of(cluster))


@pytest.mark.parametrize(("policy", "left"), [("All", 0), ("Running", 2), ("None", 3)])
def test_job_succeeds_and_cleans_up(cluster, operator, policy, left):
    cluster.apply(elastic_job(replicas=2, runPolicy={"cleanPodPolicy": policy}))
    phase(cluster, "Running")
    cluster.finish("job-worker-0", "default", exit_code=0)
    cluster.finish("job-worker-1", "default", exit_code=0)
    phase(cluster, "Succeeded")
    cluster.wait_for(lambda: len(cluster.list("Pod")) == left)
    assert status(cluster)["completionTime"]


def test_job_is_deleted_some_time_after_its_end(cluster, operator):
    job = elastic_job(replicas=1, runPolicy={"ttlSecondsAfterFinished": 0})
    cluster.apply(job)
    cluster.wait_for(lambda: num_live(cluster) == 1)
    phase(cluster, "Running")
    cluster.finish("job-worker-0", "default", exit_code=0)
    cluster.wait_for(lambda: not cluster.list("ElasticJob"))
    cluster.wait_for(lambda: not cluster.list("Pod"))


def test_suspended_job_gives_all_pods_back_until_it_is_resumed(cluster, operator):
    cluster.apply(elastic_job(replicas=2))
    phase(cluster, "Running")
    cluster.apply(elastic_job(replicas=2, suspend=True))
    phase(cluster, "Suspended")
    cluster.wait_for(lambda: not cluster.list("Pod"))
    cluster.apply(elastic_job(replicas=2, suspend=False))
    phase(cluster, "Running")
    # No name is used twice.
    assert names(pods_of(cluster)) == ["job-worker-2", "job-worker-3"]


def test_roles_have_replicas_of_their_own(cluster, operator):
    template = elastic_job()["spec"]["template"]
    roles = [
        {"name": "evaluator", "replicas": 2, "template": template},
        {"name": "parameter-server", "replicas": 1, "template": template},
    ]
    cluster.apply(elastic_job(replicas=1, roles=roles))
    cluster.wait_for(lambda: num_live(cluster) == 1)
    cluster.wait_for(
        lambda: (
            names(pods_of(cluster, role="evaluator"))
            == ["job-evaluator-0", "job-evaluator-1"]
        )
    )
    roles[0]["replicas"] = 1
    cluster.apply(elastic_job(replicas=1, roles=roles))
    cluster.wait_for(
        lambda: names(pods_of(cluster, role="evaluator")) == ["job-evaluator-0"]
    )
    assert names(pods_of(cluster, role="parameter-server")) == [
        "job-parameter-server-0"
    ]
    assert num_live(cluster) == 1


def test_pods_of_others_are_left_alone_and_those_of_nobody_adopted(cluster, operator):
    labels = {"drivetrain.dev/job": "job", "drivetrain.dev/role": "worker"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "orphan", "namespace": "default", "labels": labels},
        "spec": elastic_job()["spec"]["template"]["spec"],
    }
    stranger = copy.deepcopy(pod)
    stranger["metadata"] |= {
        "name": "stranger",
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": "another",
                "uid": "0",
                "controller": True,
            }
        ],
    }
    node = cluster.add_node("full", cpu="64")
    stranger["spec"]["nodeName"] = pod["spec"]["nodeName"] = node
    cluster.apply([pod, elastic_job(replicas=2)])
    # Of two that are not ready alike, the one that is not goes first.
    cluster.wait_for(lambda: status(cluster).get("readyReplicas") == 2)
    assert names(live(pods_of(cluster))) == ["job-worker-0", "orphan"]
    scale(cluster, 1)
    cluster.wait_for(lambda: num_live(cluster) == 1)
    cluster.delete("Pod", "orphan")
    cluster.remove_node("full")


def test_secret_and_service_that_somebody_deletes_are_made_again_as_they_were(
    cluster, operator
):
    cluster.apply(elastic_job(replicas=1))
    phase(cluster, "Running")
    secret, service = (cluster.get(k, "job-master") for k in ("Secret", "Service"))
    for kind in ("Secret", "Service"):
        cluster.delete(kind, "job-master")
    cluster.wait_for(lambda: cluster.get("Service", "job-master"))
    cluster.kill("job-worker-0")
    cluster.wait_for(lambda: names(live(pods_of(cluster))) == ["job-worker-1"])
    assert cluster.get("Secret", "job-master")["data"] == secret["data"]
    again = cluster.get("Service", "job-master")
    assert again["spec"]["clusterIP"] == service["spec"]["clusterIP"]
    assert "SecretDeleted" in {one["reason"] for one in cluster.list("Event")}


def test_secret_that_is_lost_while_no_operator_runs_lets_the_job_begin_anew(cluster):
    with RunningOperator(account(cluster)):
        cluster.apply(elastic_job(replicas=1))
        phase(cluster, "Running")
    secret = copy.deepcopy(cluster.get("Secret", "job-master"))
    secret["metadata"] = {key: secret["metadata"][key] for key in ("name", "namespace")}
    secret["data"]["token"] = "/w=="
    cluster.apply(secret)
    with RunningOperator(account(cluster)):
        cluster.wait_for(lambda: "is not for this job" in str(cluster.list("Event")))
        master = cluster.get("Pod", "job-master")["metadata"]["uid"]
        cluster.delete("Secret", "job-master")

        def is_another():
            again = cluster.get("Pod", "job-master")
            return again is not None and again["metadata"]["uid"] != master

        # The one before ends in its own time.
        cluster.wait_for(is_another)
        cluster.wait_for(lambda: names(live(pods_of(cluster))) == ["job-worker-1"])
        phase(cluster, "Running")


@pytest.mark.slow
def test_name_that_somebody_else_has_is_told(cluster, operator):
    taken = elastic_job()["spec"]["template"]["spec"]
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "job-master", "namespace": "default"},
            "spec": taken,
        }
    )
    cluster.apply(elastic_job(replicas=1))
    said = lambda: [
        event.get("note") or event.get("message", "")
        for event in cluster.list("Event")
        if event.get("reason") == "CannotReconcile"
    ]
    cluster.wait_for(lambda: any("does not belong to the job" in one for one in said()))
    assert names(cluster.list("Pod")) == ["job-master"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"replicas": 0}, "spec.replicas"),
        ({"replicas": 10**9}, "spec.replicas"),
        ({"replicas": 2, "minReplicas": 3}, "spec.minReplicas"),
        ({"replicas": 3, "maxReplicas": 2}, "spec.replicas"),
        ({"replicas": 3, "nodeUnit": 2}, "spec.replicas"),
        ({"replicas": 2, "maxReplicas": 3, "nodeUnit": 2}, "spec.maxReplicas"),
        ({"replicas": 4, "minReplicas": 1, "nodeUnit": 2}, "spec.minReplicas"),
        ({"priority": 2_000_000}, "spec.priority"),
        ({"spot": {"recovery": "Shrink"}}, "spec.spot.recovery"),
        ({"spot": {"onNotice": "Panic"}}, "spec.spot.onNotice"),
        ({"spot": {"afterMaxWait": "Forget"}}, "spec.spot.afterMaxWait"),
        ({"spot": {"maxWaitSeconds": -1}}, "spec.spot.maxWaitSeconds"),
        ({"spot": {"tolerate": 1}}, "spec.spot.tolerate"),
        (
            {"replicas": 2, "spot": {"recovery": "WaitFull", "tolerate": 2}},
            "spec.spot.tolerate",
        ),
        ({"runPolicy": {"cleanPodPolicy": "Some"}}, "spec.runPolicy.cleanPodPolicy"),
        ({"runPolicy": {"backoffLimit": -1}}, "spec.runPolicy.backoffLimit"),
        ({"runPolicy": {"leaveSeconds": 0}}, "spec.runPolicy.leaveSeconds"),
        ({"runPolicy": {"gang": "Mob"}}, "spec.runPolicy.gang"),
        ({"runPolicy": {"gang": "Kueue"}}, "spec.runPolicy.queueName"),
        ({"template": {"spec": {}}}, "spec.template.spec.containers"),
        ({"template": None}, "spec.template"),
        ({"roles": [{"name": "king", "replicas": 1}]}, "spec.roles[0].name"),
    ],
)
def test_wrong_spec_is_refused_with_its_field(cluster, spec, field):
    with pytest.raises(StatusError) as caught:
        cluster.apply(elastic_job(**spec))
    assert caught.value.code == 422
    assert field in str(caught.value)
    assert not cluster.list("ElasticJob")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"minReplicas": 1}, "spec.minReplicas"),
        ({"nodeUnit": 2}, "spec.nodeUnit"),
        ({"spot": {"enabled": True}}, "spec.spot.enabled"),
        ({"maxReplicas": 4, "replicas": 6}, "spec.replicas"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_its_field(cluster, spec, field):
    cluster.apply(elastic_job(replicas=2, minReplicas=2))
    with pytest.raises(StatusError) as caught:
        cluster.apply(elastic_job(**{"replicas": 2, "minReplicas": 2, **spec}))
    assert caught.value.code == 422
    assert field in str(caught.value)


def test_long_name_is_refused(cluster):
    with pytest.raises(StatusError, match="at most 40 characters"):
        cluster.apply(elastic_job("j" * 41))


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(verb="create", resource="pods", status=500, times=2)],
        [Fault(verb="create", resource="pods", status=500, when="after", times=2)],
        [Fault(verb="create", resource="pods", drop=True, when="after")],
        [Fault(verb="update", resource="elasticjobs/status", status=409, times=3)],
        [Fault(verb="create", resource="secrets", status=429, retry_after_s=0)],
        [Fault(verb="patch", resource="elasticjobs", status=503, retry_after_s=0)],
        [Fault(verb="list", resource="pods", status=410)],
        [Fault(verb="watch", resource="pods", status=410)],
        [Fault(verb="watch", resource="pods", drop=True, after_events=1)],
        [Fault(verb="create", resource="events", status=500, times=5)],
    ],
    ids=lambda all: f"{all[0].verb}-{all[0].resource}-{all[0].status}-{all[0].when}",
)
def test_what_the_server_does_wrong_is_survived(cluster, faults):
    for fault in faults:
        cluster.faults.add(fault)
    with RunningOperator(account(cluster)):
        cluster.apply(elastic_job(replicas=3))
        phase(cluster, "Running")
        cluster.kill("job-worker-1")
        cluster.wait_for(lambda: num_live(cluster) == 3)
        phase(cluster, "Running")
        cluster.wait_for(lambda: status(cluster)["failures"] == 1)
        assert num_live(cluster) == 3


def test_watches_that_end_or_are_too_old_begin_anew(cluster, operator):
    cluster.apply(elastic_job(replicas=1))
    phase(cluster, "Running")
    cluster.drop_watches()
    cluster.compact()
    scale(cluster, 2)
    cluster.wait_for(lambda: num_live(cluster) == 2)
    cluster.drop_watches()
    cluster.kill(names(live(pods_of(cluster)))[0])
    cluster.wait_for(lambda: num_live(cluster) == 2)


@pytest.mark.slow
def test_second_operator_does_nothing_that_was_done(cluster):
    with RunningOperator(account(cluster)):
        cluster.apply(elastic_job(replicas=2))
        phase(cluster, "Running")
    before = names(pods_of(cluster))
    asked = []
    cluster.faults.hook = lambda call: asked.append((call.verb, call.name))
    with RunningOperator(account(cluster)):
        # The first job is looked at before one that comes later.
        cluster.apply(elastic_job("later", replicas=1))
        phase(cluster, "Running", "later")
    cluster.faults.hook = None
    assert names(pods_of(cluster)) == before
    about = {verb for verb, name in asked if name.split("-")[0] == "job"}
    # Its secret is not kept by anybody else.
    assert about == {"get"}


# ---- spot ----


def spot_job(**options):
    spot = {"enabled": True, "settleSeconds": 0, "growAfterSeconds": 0, **options}
    job = elastic_job(replicas=2, minReplicas=1, spot=spot)
    job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 8
    return job


@pytest.mark.slow
def test_reclaimed_worker_is_saved_replaced_and_let_go(cluster):
    training = FakeTraining(cluster)
    with RunningOperator(account(cluster), connect=training):
        cluster.apply(spot_job())
        phase(cluster, "Running")
        assert training.admitted == {"job-worker-0", "job-worker-1"}
        victim = pods_of(cluster)[0]
        node = cluster.add_node("spare")
        cluster.reclaim(victim["spec"]["nodeName"], notice_s=8)
        cluster.wait_for(lambda: "job-worker-2" in (training.admitted or ()), 60)
        cluster.wait_for(lambda: ("leave", "job-worker-0") in training.history, 60)
        done = [what for what, _ in training.history]
        assert done.index("save") < done.index("leave")
        cluster.wait_for(lambda: num_live(cluster) == 2)
        assert status(cluster)["failures"] == 0
        cluster.remove_node(node)


def test_job_that_waits_for_too_long_fails_with_the_reason(cluster):
    with RunningOperator(account(cluster), connect=FakeTraining(cluster)):
        job = spot_job(maxWaitSeconds=0, nodeSelector={"no": "such"})
        cluster.apply(job)
        phase(cluster, "Failed")
        failed = next(c for c in status(cluster)["conditions"] if c["type"] == "Failed")
        assert failed["reason"] == "MaxWaitExceeded"


def test_job_that_waits_for_too_long_is_suspended_until_it_is_touched(cluster):
    with RunningOperator(account(cluster), connect=FakeTraining(cluster)):
        job = spot_job(
            maxWaitSeconds=0, afterMaxWait="Suspend", nodeSelector={"no": "such"}
        )
        cluster.apply(job)
        phase(cluster, "Suspended")
        cluster.wait_for(lambda: not live(pods_of(cluster)))
        job["spec"]["spot"]["nodeSelector"] = {}
        # A merge keeps what is not named.
        job["spec"]["spot"]["nodeSelector"] = {"kubernetes.io/os": "linux"}
        job["spec"]["spot"]["maxWaitSeconds"] = 60
        cluster.apply(job)
        cluster.wait_for(lambda: num_live(cluster) == 2)


def test_workers_on_demand_fill_the_gap(cluster):
    with RunningOperator(account(cluster), connect=FakeTraining(cluster)):
        cluster.apply(
            spot_job(
                maxWaitSeconds=0, afterMaxWait="OnDemand", nodeSelector={"no": "such"}
            )
        )
        phase(cluster, "Scaling")
        labels = "drivetrain.dev/market=on-demand"
        assert len(cluster.list("Pod", selector=labels)) == 1
        assert status(cluster)["onDemandReplicas"] == 1


def test_master_that_does_not_answer_changes_nothing(cluster):
    training = FakeTraining(cluster)
    with RunningOperator(account(cluster), connect=training):
        cluster.apply(spot_job())
        phase(cluster, "Running")
        training.is_down = True
        before = list(training.history)
        cluster.kill("job-worker-0")
        cluster.wait_for(lambda: status(cluster)["failures"] == 1)
        assert training.history == before
        training.is_down = False
        cluster.wait_for(lambda: num_live(cluster) == 2)


# ---- one pool ----


def test_job_grows_by_what_was_offered_however_often_it_is_looked_at(
    shared, monkeypatch
):
    cluster = shared
    for number in range(3):
        cluster.add_node(f"seldom-{number}", cpu="2", labels={"pool": "seldom"})
    job = elastic_job("grows", replicas=1, minReplicas=1, maxReplicas=9, cpu="2")
    job["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "seldom"}
    job["spec"]["master"] = {"template": elastic_job(cpu="3")["spec"]["template"]}
    # What was found when there was one worker, and is not looked for again.
    shares = {("default", "grows"): Share(offered=2, num_present=1)}
    monkeypatch.setattr(operator_module, "share_pool", lambda *_: shares)
    with RunningOperator(account(cluster)):
        cluster.apply(job)
        cluster.wait_for(lambda: status(cluster, "grows").get("readyReplicas") == 3)
        # It is looked at once more, after all that came of what it has made.
        scale(cluster, 2, "grows")
        cluster.wait_for(
            lambda: status(cluster, "grows").get("observedGeneration") == 2
        )
        assert num_live(cluster, "grows") == 3
        cluster.delete("ElasticJob", "grows")
        cluster.wait_for(lambda: not cluster.list("ElasticJob"))
        cluster.wait_for(lambda: not cluster.list("Pod"))
    for number in range(3):
        cluster.remove_node(f"seldom-{number}")


def test_low_priority_grows_into_idle_nodes_and_yields(shared):
    cluster = shared
    for number in range(4):
        cluster.add_node(f"small-{number}", cpu="2", labels={"pool": "small"})
    low = elastic_job("low", replicas=1, minReplicas=1, maxReplicas=4, cpu="2")
    high = elastic_job("high", replicas=2, minReplicas=1, cpu="2", priority=10)
    for job in (low, high):
        job["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "small"}
        # Too large for the nodes of the pool.
        job["spec"]["master"] = {"template": elastic_job(cpu="3")["spec"]["template"]}
    with RunningOperator(account(cluster)):
        cluster.apply(low)
        cluster.wait_for(lambda: num_live(cluster, "low") == 4, 60)
        cluster.apply(high)
        cluster.wait_for(
            lambda: (
                status(cluster, "high").get("phase") == "Running"
                and num_live(cluster, "low") == 2
            ),
            60,
        )
        for name in ("low", "high"):
            cluster.delete("ElasticJob", name)
        cluster.wait_for(lambda: not cluster.list("ElasticJob"))
        cluster.wait_for(lambda: not cluster.list("Pod"))
    for number in range(4):
        cluster.remove_node(f"small-{number}")
