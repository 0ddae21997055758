"""What an operator does about a job is decided without a cluster."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_cloud.kubernetes.job_spec import parse_job
from drivetrain_cloud.kubernetes.observed import Memory, Observed
from drivetrain_cloud.kubernetes.operator_actions import (
    CreateObject,
    DeleteObject,
    LetLeave,
    PatchObject,
    SaveState,
    SetStatus,
    TellEvent,
)
from drivetrain_cloud.kubernetes.pod_templates import (
    master_service,
    owner_of,
    worker_pod,
)
from drivetrain_cloud.kubernetes.pool_share import Share, share_pool
from drivetrain_cloud.kubernetes.reconcile import FINALIZER, reconcile
from drivetrain_cloud.spot.capacity import Market
from drivetrain_cloud.spot.job_control import JobView

POD = {"containers": [{"name": "worker", "resources": {"requests": {"cpu": "1"}}}]}


def a_job(name="job", replicas=2, status=None, **spec):
    return {
        "apiVersion": "drivetrain.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-of-{name}",
            "generation": 1,
            "resourceVersion": "1",
            "finalizers": [FINALIZER],
        },
        "spec": {"replicas": replicas, "template": {"spec": POD}, **spec},
        "status": status or {},
    }


def a_worker(job, number, phase="Running", *, reason="", leaving=False, **status):
    pod = worker_pod(job, parse_job(job), number, Market.SPOT, "10.0.0.1")
    pod["metadata"]["uid"] = f"uid-{pod['metadata']['name']}"
    if leaving:
        pod["metadata"].setdefault("annotations", {})["drivetrain.dev/leaving"] = "so"
    ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
    pod["status"] = {"phase": phase, "conditions": [ready], "reason": reason, **status}
    return pod


def a_master(job):
    pod = a_worker(job, 0)
    labels = {"drivetrain.dev/job": job["metadata"]["name"]}
    pod["metadata"] |= {
        "name": "job-master",
        "uid": "uid-of-master",
        "labels": {**labels, "drivetrain.dev/role": "master"},
        "ownerReferences": [owner_of(job)],
    }
    return pod


def seen(job, *pods, **options):
    service = master_service(job)
    service["spec"]["clusterIP"] = "10.0.0.1"
    options = {"service": service, "has_secret": True, **options}
    return Observed(job=job, pods=(a_master(job), *pods), **options)


def done(plan, kind):
    return [one for one in plan.actions if isinstance(one, kind)]


def made(plan):
    return [one.item["metadata"]["name"] for one in done(plan, CreateObject)]


def deleted(plan):
    return [one.name for one in done(plan, DeleteObject)]


def told(plan):
    return [one.reason for one in done(plan, TellEvent)]


DISRUPTED = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}


@pytest.mark.parametrize(
    ("ends", "failures"),
    [
        ({"phase": "Failed"}, 1),
        ({"phase": "Failed", **DISRUPTED}, 0),
        ({"phase": "Failed", "reason": "Evicted"}, 0),
        ({"phase": "Failed", "leaving": True}, 0),
    ],
)
def test_only_failures_of_its_own_count(ends, failures):
    job = a_job(replicas=2, runPolicy={"backoffLimit": 0})
    options = dict(ends)
    pods = [a_worker(job, 0), a_worker(job, 1, **options)]
    plan = reconcile(seen(job, *pods), 10.0)
    status = done(plan, SetStatus)[-1].status
    assert status["failures"] == failures
    assert (status["phase"] == "Failed") == bool(failures)
    assert ("BackoffLimitExceeded" in told(plan)) == bool(failures)
    assert made(plan) == ([] if failures else ["job-worker-2"])


def test_failed_pod_is_deleted_only_when_it_is_counted():
    job = a_job(replicas=1)
    pod = a_worker(job, 0, "Failed")
    plan = reconcile(seen(job, pod), 10.0)
    assert not deleted(plan)
    assert told(plan) == ["WorkerFailed"]
    job["status"] = done(plan, SetStatus)[-1].status
    assert job["status"]["countedPods"] == ["uid-job-worker-0"]
    again = reconcile(seen(job, pod, memory=plan.memory), 11.0)
    assert deleted(again) == ["job-worker-0"]
    assert "failures" not in told(again)


def test_workers_may_fail_very_often():
    policy = {"backoffLimit": 9999}
    job = a_job(replicas=1, status={"failures": 1100}, runPolicy=policy)
    assert reconcile(seen(job, a_worker(job, 5, "Failed")), 0.0).look_again_s == 60.0


def test_workers_that_fail_again_and_again_are_replaced_later_and_later():
    job = a_job(replicas=1, status={"failures": 4, "lastPodNumber": 4})
    pod = a_worker(job, 5, "Failed")
    plan = reconcile(seen(job, pod), 100.0)
    assert not made(plan)
    assert plan.look_again_s == 108.0
    job["status"] = done(plan, SetStatus)[-1].status
    assert not made(reconcile(seen(job, wall_s=7.9), 3.0))
    # An operator that has just begun counts from what is written down.
    assert made(reconcile(seen(job, wall_s=8.0), 3.0)) == ["job-worker-6"]


def test_worker_that_leaves_is_written_down_asked_once_and_deleted_when_gone():
    job = a_job(replicas=1)
    first, second = a_worker(job, 0), a_worker(job, 1)
    view = JobView(
        present=frozenset({"job-worker-0", "job-worker-1"}),
        ready=frozenset({"job-worker-0", "job-worker-1"}),
    )
    plan = reconcile(seen(job, first, second, view=view), 1.0)
    (patch,) = done(plan, PatchObject)
    assert patch.name == "job-worker-1"
    assert not done(plan, LetLeave)
    second = a_worker(job, 1, leaving=True)
    # An operator that has just begun knows only what is written down.
    plan = reconcile(seen(job, first, second, view=view), 2.0)
    assert [one.pod for one in done(plan, LetLeave)] == ["job-worker-1"]
    (patch,) = done(plan, PatchObject)
    second["metadata"]["annotations"] |= patch.patch["metadata"]["annotations"]
    again = reconcile(seen(job, first, second, view=view, memory=plan.memory), 3.0)
    assert not done(again, LetLeave)
    assert not deleted(again)
    gone = JobView(present=frozenset({"job-worker-0"}), ready=frozenset())
    plan = reconcile(seen(job, first, second, view=gone, memory=again.memory), 4.0)
    assert deleted(plan) == ["job-worker-1"]


def test_worker_that_does_not_leave_in_time_is_deleted():
    job = a_job(replicas=1, runPolicy={"leaveSeconds": 5})
    pods = a_worker(job, 0), a_worker(job, 1, leaving=True)
    plan = reconcile(seen(job, *pods), 1.0)
    assert plan.look_again_s == 6.0
    plan = reconcile(seen(job, *pods, memory=plan.memory), 6.0)
    assert deleted(plan) == ["job-worker-1"]


def test_suspended_job_is_saved_before_its_pods_go():
    job = a_job(replicas=1, suspend=True)
    pod, name = a_worker(job, 0), frozenset({"job-worker-0"})
    view = JobView(present=name, ready=name, training=name)
    plan = reconcile(seen(job, pod, view=view), 1.0)
    (save,) = done(plan, SaveState)
    assert not deleted(plan)
    from drivetrain_cloud.spot.job_control import SaveResult

    saved = JobView(
        present=name,
        ready=name,
        training=name,
        requested=save.request,
        saved=SaveResult(save.request, 7, ""),
    )
    plan = reconcile(seen(job, pod, view=saved, memory=plan.memory), 2.0)
    assert sorted(deleted(plan)) == ["job-master", "job-worker-0"]
    assert done(plan, SetStatus)[-1].status["phase"] == "Suspended"


def test_suspended_job_that_cannot_save_gives_its_pods_back_in_the_end():
    job = a_job(replicas=1, suspend=True, runPolicy={"leaveSeconds": 5})
    name = frozenset({"job-worker-0"})
    view = JobView(present=name, ready=name, training=name)
    plan = reconcile(seen(job, a_worker(job, 0), view=view), 1.0)
    (save,) = done(plan, SaveState)
    late = copy.copy(view)
    asked = JobView(
        present=late.present,
        ready=late.ready,
        training=late.training,
        requested=save.request,
    )
    plan = reconcile(seen(job, a_worker(job, 0), view=asked, memory=plan.memory), 5.9)
    assert not deleted(plan)
    plan = reconcile(seen(job, a_worker(job, 0), view=asked, memory=plan.memory), 6.0)
    assert "job-worker-0" in deleted(plan)


def test_spec_that_is_not_understood_changes_nothing_but_what_is_told():
    job = a_job(replicas=2, spot={"recovery": "Shrink"})
    pods = (a_master(a_job()), a_worker(a_job(), 0))
    plan = reconcile(Observed(job=job, pods=pods), 1.0)
    (status,) = (one.status for one in plan.actions)
    assert status["conditions"][-1]["type"] == "Invalid"
    assert "Shrink" in status["conditions"][-1]["message"]


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ({"env": "A=1"}, "spec.template.spec.containers[0].env must be a list"),
        ({"env": [{"value": "1"}]}, "containers[0].env: each needs a name"),
        ({"resources": "1"}, "containers[0].resources must be an object"),
        ({"resources": {"limits": 1}}, "resources.limits must be an object"),
    ],
)
def test_template_that_is_of_no_pod_is_said_with_its_field(template, says):
    observed = seen(a_job())
    for changed, words in (
        ({"spec": {"containers": [{"name": "worker", **template}]}}, says),
        ({"spec": {**POD, "nodeSelector": "a"}}, "spec.nodeSelector must be"),
        ({"spec": {**POD, "tolerations": "a"}}, "spec.tolerations must be"),
        ({"spec": {**POD, "containers": []}}, "containers must not be empty"),
        ({"metadata": {"labels": "a"}, "spec": POD}, "metadata.labels must be"),
    ):
        plan = reconcile(replace(observed, job=a_job(template=changed)), 0.0)
        (row,) = done(plan, SetStatus)[0].status["conditions"]
        assert (row["type"], row["reason"]) == ("Invalid", "InvalidSpec")
        assert words in row["message"]
        assert not made(plan)


def test_job_of_very_many_workers_gets_them_little_by_little():
    job = a_job(replicas=10**9)
    assert len(made(reconcile(seen(job), 0.0))) == 200
    job = a_job(replicas=10**9, spot={"enabled": True})
    plan = reconcile(seen(job, view=JobView(admitted=frozenset())), 0.0)
    assert len(made(plan)) == 200


def test_labels_and_a_status_that_somebody_wrote_give_no_wild_names():
    job = a_job(replicas=1, status={"lastPodNumber": -9, "trainerStatus": None})
    other = a_worker(job, 0)
    other["metadata"]["labels"]["drivetrain.dev/number"] = "9" * 60
    other["metadata"]["ownerReferences"] = [{"uid": "x", "controller": True}]
    assert made(reconcile(seen(job, other), 0.0)) == ["job-worker-0"]


def test_master_of_somebody_else_is_not_taken_for_that_of_the_job():
    job = a_job()
    other = a_master(job)
    other["metadata"]["name"] = "stranger"
    other["metadata"]["ownerReferences"] = [{"uid": "x", "controller": True}]
    observed = replace(seen(job), pods=(other,))
    assert "job-master" in made(reconcile(observed, 0.0))
    other["metadata"]["ownerReferences"] = []
    assert "job-master" not in made(reconcile(observed, 0.0))


@pytest.mark.parametrize("spot", [{}, {"enabled": True}])
def test_worker_that_found_no_node_is_not_waited_for_when_training_ends(spot):
    job = a_job(replicas=3, minReplicas=2, status={"phase": "Running"}, spot=spot)
    over = [a_worker(job, number, "Succeeded") for number in range(2)]
    plan = reconcile(seen(job, *over, a_worker(job, 2, "Pending")), 0.0)
    assert deleted(plan) == ["job-worker-2"]
    assert not made(plan)
    plan = reconcile(seen(job, *over), 0.0)
    assert done(plan, SetStatus)[0].status["phase"] == "Succeeded"


def test_role_that_fails_again_and_again_is_replaced_later_and_later():
    role = {"name": "evaluator", "replicas": 1, "template": {"spec": POD}}
    job = a_job(replicas=1, roles=[role])
    memory, now_s, waits = Memory(), 0.0, []
    for number in range(5):
        pod = a_worker(job, 0, "Failed")
        pod["metadata"] |= {"name": "job-evaluator-0", "uid": f"uid-{number}"}
        pod["metadata"]["labels"]["drivetrain.dev/role"] = "evaluator"
        plan = reconcile(seen(job, a_worker(job, 0), pod, memory=memory), now_s)
        began_s = now_s
        while not deleted(plan):
            now_s = plan.look_again_s
            options = {"memory": plan.memory}
            plan = reconcile(seen(job, a_worker(job, 0), pod, **options), now_s)
        waits.append(now_s - began_s)
        memory = plan.memory
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0]


def test_taint_that_nobody_can_read_or_is_old_stops_no_job():
    job = a_job(replicas=1, spot={"enabled": True}, status={"phase": "Running"})
    pod = a_worker(job, 0)
    pod["spec"]["nodeName"] = "n"
    for added in ("2020-01-01T00:00:00Z", "soon"):
        taint = {"key": "karpenter.sh/disrupted", "timeAdded": added}
        node = {"metadata": {"name": "n"}, "spec": {"taints": [taint]}}
        options = {"nodes": {"n": node}, "wall_s": 1767636000.0}
        notice = (
            reconcile(seen(job, pod, **options), 5.0)
            .memory.workers["job-worker-0"]
            .notice
        )
        assert (notice.deadline_s if notice else None) == (
            5.0 if added != "soon" else None
        )


def test_kueue_and_volcano_find_the_pods_of_a_group():
    job = a_job(replicas=3, runPolicy={"gang": "Kueue", "queueName": "q"})
    data = a_worker(job, 0)["metadata"]
    assert data["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert data["labels"]["kueue.x-k8s.io/pod-group-name"] == "job"
    assert data["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "3"
    job = a_job(replicas=4, minReplicas=2, runPolicy={"gang": "Volcano"})
    plan = reconcile(seen(job), 1.0)
    group = next(one.item for one in done(plan, CreateObject) if one.kind == "PodGroup")
    assert group["spec"] == {"minMember": 2, "minResources": {"cpu": "2"}}
    plan = reconcile(seen(job, *(a_worker(job, i) for i in range(4))), 1.0)
    assert not done(plan, CreateObject)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Pending", "Running", "Failed", "Succeeded"]),
            st.sampled_from(["ours", "another's", "going", "leaving"]),
        ),
        max_size=6,
    ),
    st.integers(1, 5),
)
def test_no_pod_of_others_is_touched_and_no_name_is_given_twice(pods, replicas):
    job, other = a_job(replicas=replicas), a_job("other")
    items = []
    for number, (phase, whose) in enumerate(pods):
        pod = a_worker(job, number, phase, leaving=whose == "leaving")
        if whose == "another's":
            pod["metadata"]["ownerReferences"] = [owner_of(other)]
        if whose == "going":
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        items.append(pod)
    plan = reconcile(seen(job, *items), 1.0)
    strangers = {
        pod["metadata"]["name"]
        for pod, (_, whose) in zip(items, pods, strict=True)
        if whose in {"another's", "going"}
    }
    touched = set(deleted(plan)) | {one.name for one in done(plan, PatchObject)}
    assert not touched & strangers
    there = {pod["metadata"]["name"] for pod in items}
    assert len(set(made(plan))) == len(made(plan))
    assert not set(made(plan)) & there
    # The same once more, with the same memory: it would do the same.
    assert reconcile(seen(job, *items), 1.0).actions == plan.actions


# ---- one pool ----


class Pods:
    def __init__(self, pods):
        self.pods = pods

    def those(self, index):
        name = index.partition("/")[2]
        return [
            pod
            for pod in self.pods
            if pod["metadata"]["labels"]["drivetrain.dev/job"] == name
        ]

    def items(self):
        return self.pods


def a_node(name, cpu="1"):
    return {
        "metadata": {"name": name, "labels": {}},
        "spec": {},
        "status": {"allocatable": {"cpu": cpu, "pods": "10"}},
    }


def on(pod, node):
    pod["spec"]["nodeName"] = node
    return pod


def waiting(pod):
    row = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pod["status"]["conditions"] = [row]
    return pod


def test_idle_nodes_go_to_the_higher_priority_first():
    low = a_job("low", replicas=1, maxReplicas=4)
    high = a_job("high", replicas=1, maxReplicas=2, priority=5)
    pods = [on(a_worker(low, 0), "n0"), on(a_worker(high, 0), "n1")]
    nodes = [a_node(f"n{number}") for number in range(4)]
    shares = share_pool([low, high], Pods(pods), nodes)
    one = Share(offered=1, num_present=1)
    assert shares == {("ns", "high"): one, ("ns", "low"): one}


@pytest.mark.parametrize(
    "resources",
    [
        "x",
        {"requests": "x"},
        {"requests": {"cpu": ["1"]}},
        {"requests": {"cpu": "1..5"}},
    ],
)
def test_template_and_node_that_say_nothing_take_no_room(resources):
    job = a_job(replicas=1, maxReplicas=3)
    pod = a_worker(job, 0)
    odd = copy.deepcopy(job)
    odd["spec"]["template"]["spec"]["containers"][0]["resources"] = resources
    room = {"status": {"allocatable": {"cpu": "9", "pods": "9"}}}
    node = {"metadata": {"name": "n"}, **room}
    bare = [{"metadata": {"name": "m"}}, {"metadata": {"name": "o"}, "status": {}}]
    wrong = {"metadata": {"name": "p"}, "status": {"allocatable": {"cpu": "zz"}}}
    nodes = [*bare, wrong, node]
    two = Share(offered=2, num_present=1)
    assert share_pool([job], Pods([pod]), nodes) == {("ns", "job"): two}
    assert share_pool([odd], Pods([pod]), nodes) == {}


def test_lowest_priority_yields_first_and_keeps_its_minimum():
    low = a_job("low", replicas=3, minReplicas=2)
    middle = a_job("middle", replicas=3, minReplicas=1, priority=3)
    high = a_job("high", replicas=2, priority=9)
    pods = [on(a_worker(low, number), f"a{number}") for number in range(3)]
    pods += [on(a_worker(middle, number), f"b{number}") for number in range(3)]
    pods += [waiting(a_worker(high, number, "Pending")) for number in range(2)]
    shares = share_pool([low, middle, high], Pods(pods), [])
    one = Share(wanted=1, is_held=True, num_present=3)
    assert shares == {("ns", "low"): one, ("ns", "middle"): one}


def test_what_a_job_has_taken_or_given_since_is_not_taken_or_given_again():
    offer, wish = Share(offered=3, num_present=2), Share(wanted=3, num_present=5)
    assert [offer.after(count).offered for count in (1, 2, 4, 9)] == [3, 3, 1, 0]
    assert [wish.after(count).wanted for count in (6, 5, 3, 0)] == [3, 3, 1, 0]


def test_nobody_grows_while_an_equal_finds_no_node():
    one = a_job("one", replicas=1, maxReplicas=2)
    two = a_job("two", replicas=1)
    pods = [on(a_worker(one, 0), "n0"), waiting(a_worker(two, 0, "Pending"))]
    assert not share_pool([one, two], Pods(pods), [a_node("n0"), a_node("n1")])


def test_job_that_yields_asks_its_last_workers_to_leave():
    job = a_job(replicas=3, minReplicas=1)
    pods = [a_worker(job, number) for number in range(3)]
    plan = reconcile(seen(job, *pods, wanted_by_others=2), 1.0)
    assert [one.name for one in done(plan, PatchObject)] == [
        "job-worker-2",
        "job-worker-1",
    ]


def test_memory_of_another_job_of_the_same_name_is_forgotten():
    job = a_job(replicas=1)
    old = Memory(uid="another", saved_s=1e9)
    plan = reconcile(seen(job, memory=old), 1.0)
    assert made(plan) == ["job-worker-0"]
    assert plan.memory.uid == "uid-of-job"


# ---- what pods run ----


def test_pod_of_a_master_knows_its_job_from_the_environment(tmp_path):
    from drivetrain_cloud.kubernetes.master import master_options
    from drivetrain_core import ProgramError

    env = {
        "DRIVETRAIN_POD_IP": "fd00::7",
        "DRIVETRAIN_ELASTIC_JOURNAL": "/var/lib/drivetrain/journal.db",
        "DRIVETRAIN_ELASTIC_TOKEN": "t" * 43,
        "DRIVETRAIN_ELASTIC_TLS_CERTIFICATE_PEM": "certificate",
        "DRIVETRAIN_ELASTIC_TLS_KEY_PEM": "key",
    }
    options = master_options(env, tmp_path)
    said = dict(zip(options[::2], options[1::2], strict=True))
    assert said["--address"] == "[fd00::7]:29400"
    assert said["--journal"] == "/var/lib/drivetrain/journal.db"
    for name in ("--token-file", "--tls-key"):
        assert Path(said[name]).stat().st_mode & 0o077 == 0
    env["DRIVETRAIN_ELASTIC_JOURNAL"] = "redis://r:1/0?job=j"
    assert "redis://r:1/0?job=j" in master_options(env, tmp_path)
    del env["DRIVETRAIN_ELASTIC_TLS_KEY_PEM"]
    with pytest.raises(ProgramError, match="DRIVETRAIN_ELASTIC_TLS_KEY_PEM not set"):
        master_options(env, tmp_path)


@pytest.mark.parametrize("missing", ["MASTER", "NNODES", "NODE"])
def test_agent_outside_of_a_job_says_what_is_missing(missing):
    from drivetrain_cloud.kubernetes.agent import agent_options
    from drivetrain_core import ProgramError

    names = ("MASTER", "NNODES", "NODE")
    env = {f"DRIVETRAIN_ELASTIC_{name}": "x" for name in names if name != missing}
    with pytest.raises(ProgramError, match=f"DRIVETRAIN_ELASTIC_{missing} is not set"):
        agent_options(env)


def test_pods_of_a_job_have_what_their_programs_ask_for(tmp_path):
    from drivetrain_cloud.kubernetes.agent import agent_options
    from drivetrain_cloud.kubernetes.master import master_options
    from drivetrain_cloud.kubernetes.pod_templates import master_pod

    job = a_job(replicas=4, minReplicas=2)

    def env_of(pod):
        variables = pod["spec"]["containers"][0]["env"]
        return {one["name"]: one.get("value", "x") for one in variables}

    options = agent_options(env_of(a_worker(job, 0)))
    assert options[: 2 * 3 : 2] == ["--rdzv-endpoint", "--nnodes", "--node"]
    assert options[3].startswith("2:")
    master_options(env_of(master_pod(job, parse_job(job))), tmp_path)
