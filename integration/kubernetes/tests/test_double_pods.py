"""Pods of the double are processes, which end as pods do and leave nothing behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from double_samples import clean_up, pod
from drivetrain_cluster_double import RECLAIM_TAINT, ClusterDouble, StatusError

from drivetrain_testing import is_alive

pytestmark = pytest.mark.extra

# A file exists when what stands before it has happened.
READY = "echo ready > ready; "


@pytest.fixture(scope="module")
def shared():
    with ClusterDouble(nodes=1, backoff_s=0.05) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared):
    yield shared
    clean_up(shared)


def shell(name, script, **spec):
    return pod(name, ("sh", "-c", script), **spec)


def status(cluster, name="p"):
    return (cluster.get("Pod", name) or {}).get("status", {})


def container(cluster, name="p"):
    return (status(cluster, name).get("containerStatuses") or [{}])[0]


def ended(cluster, name="p"):
    cluster.wait_for(
        lambda: status(cluster, name).get("phase") in {"Succeeded", "Failed"}
    )
    return container(cluster, name)["state"]["terminated"]


def is_running(cluster, name="p"):
    return status(cluster, name).get("phase") == "Running"


def condition(cluster, kind, name="p"):
    there = status(cluster, name).get("conditions") or ()
    return next((c for c in there if c["type"] == kind), {})


def has_said(cluster, word, name="p"):
    cluster.wait_for(lambda: word in cluster.logs(name))


@pytest.mark.parametrize(
    ("script", "code", "reason", "phase"),
    [
        ("exit 0", 0, "Completed", "Succeeded"),
        ("exit 3", 3, "Error", "Failed"),
        ("kill -9 $$$$", 137, "Error", "Failed"),
        ("kill -SEGV $$$$", 139, "Error", "Failed"),
    ],
)
def test_pod_ends_as_its_process_does(cluster, script, code, reason, phase):
    cluster.apply(shell("p", script))
    found = ended(cluster)
    assert (found["exitCode"], found["reason"]) == (code, reason)
    assert status(cluster)["phase"] == phase
    assert condition(cluster, "Ready")["status"] == "False"


def test_pod_whose_program_is_missing_fails(cluster):
    cluster.apply(pod("p", ["there-is-no-such-program"]))
    assert ended(cluster)["reason"] == "StartError"
    assert "No such file" in cluster.logs("p")


def test_pod_knows_itself_and_reaches_the_api(cluster):
    item = shell("p", "echo $IP $NODE $HOSTNAME; test -f $KUBECONFIG && echo found")
    item["spec"]["containers"][0]["env"] = [
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    cluster.apply(item)
    ended(cluster)
    lines = cluster.logs("p").splitlines()
    assert lines == [f"{status(cluster)['podIP']} node-0 p", "found"]
    assert status(cluster)["podIP"].startswith("127.")


def test_pod_waits_for_what_its_variables_refer_to(cluster):
    item = shell("p", "echo $V")
    reference = {"secretKeyRef": {"name": "c", "key": "v"}}
    item["spec"]["containers"][0]["env"] = [{"name": "V", "valueFrom": reference}]
    cluster.apply(item)
    waiting = lambda: (
        container(cluster).get("state", {}).get("waiting", {}).get("reason")
    )
    cluster.wait_for(lambda: waiting() == "CreateContainerConfigError")
    data = {"metadata": {"name": "c"}, "stringData": {"v": "here"}}
    cluster.apply({"apiVersion": "v1", "kind": "Secret", **data})
    assert ended(cluster)["exitCode"] == 0
    assert cluster.logs("p") == "here\n"
    cluster.delete("Secret", "c")


def test_empty_volume_lasts_as_long_as_its_pod(cluster):
    script = "echo $FILE; test -f $FILE && exit 0; touch $FILE; exit 1"
    item = shell("p", script, restartPolicy="OnFailure")
    item["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
    item["spec"]["containers"][0] |= {
        "volumeMounts": [{"name": "v", "mountPath": "/kept"}],
        "env": [{"name": "FILE", "value": "/kept/file"}],
    }
    cluster.apply(item)
    ended(cluster)
    assert status(cluster)["phase"] == "Succeeded"
    assert container(cluster)["restartCount"] == 1
    assert not cluster.logs("p").startswith("/kept")


def test_deleted_pod_gets_its_time_to_end(cluster):
    script = "trap 'echo ending; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    cluster.apply(shell("p", script))
    has_said(cluster, "ready")
    cluster.delete("Pod", "p")
    cluster.wait_for(lambda: cluster.get("Pod", "p") is None)
    assert cluster.logs("p").endswith("ending\n")


@pytest.mark.slow
def test_deleted_pod_that_does_not_end_is_killed_with_all_it_started(cluster):
    script = (
        "trap '' TERM; setsid sleep 100 & echo child $!; while :; do sleep 0.1; done"
    )
    cluster.apply(shell("p", script, terminationGracePeriodSeconds=1))
    has_said(cluster, "child")
    child = int(cluster.logs("p").split()[1])
    assert is_alive(child)
    cluster.delete("Pod", "p")
    cluster.wait_for(lambda: cluster.get("Pod", "p") is None)
    assert not is_alive(child)


def test_process_that_outlives_its_parent_ends_with_the_pod(cluster):
    cluster.apply(shell("p", "setsid sleep 100 & echo child $!; exit 0"))
    ended(cluster)
    assert not is_alive(int(cluster.logs("p").split()[1]))


def test_process_is_started_again_as_its_policy_says(cluster):
    script = "test -f once && sleep 100; touch once; exit 1"
    cluster.apply(shell("p", script, restartPolicy="OnFailure"))
    cluster.wait_for(lambda: container(cluster).get("restartCount") == 1)
    cluster.wait_for(lambda: container(cluster).get("ready"))
    assert container(cluster)["lastState"]["terminated"]["exitCode"] == 1
    cluster.kill("p", reason="OOMKilled")
    cluster.wait_for(lambda: container(cluster).get("restartCount") == 2)
    assert container(cluster)["lastState"]["terminated"]["reason"] == "OOMKilled"
    cluster.apply(shell("q", "exit 0", restartPolicy="OnFailure"))
    assert ended(cluster, "q")["reason"] == "Completed"


LISTEN = """
import os, socket, time
while not os.path.exists("flag"):
    time.sleep(0.01)
place = socket.create_server((os.environ["IP"], 7100))
while True:
    place.accept()[0].close()
"""
IP = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def test_pod_is_ready_when_its_probe_says_so(cluster):
    item = pod(
        "p", ["python", "-c", f"import os; print(os.getcwd(), flush=True){LISTEN}"]
    )
    probe = {"tcpSocket": {"port": 7100}, "periodSeconds": 0.01}
    item["spec"]["containers"][0] |= {"readinessProbe": probe, "env": [IP]}
    cluster.apply(item)
    cluster.wait_for(lambda: is_running(cluster))
    assert condition(cluster, "Ready")["status"] == "False"
    has_said(cluster, "/")
    Path(cluster.logs("p").strip(), "flag").touch()
    cluster.wait_for(lambda: condition(cluster, "Ready")["status"] == "True")


@pytest.mark.parametrize(
    ("spec", "container"),
    [
        ({"activeDeadlineSeconds": 1}, {}),
        ({"priorityClassName": "high"}, {}),
        ({"affinity": {"nodeAffinity": {}}}, {}),
        ({}, {"readinessProbe": {"exec": {"command": ["true"]}}}),
    ],
    ids=str,
)
def test_pod_that_asks_for_what_is_not_done_is_refused(cluster, spec, container):
    item = pod("p", **spec)
    item["spec"]["containers"][0] |= container
    with pytest.raises(
        StatusError, match="this double does not do that: spec"
    ) as error:
        cluster.apply(item)
    assert error.value.code == 501


def test_service_leads_to_a_pod_that_is_ready(cluster):
    spec = {"selector": {"app": "x"}, "ports": [{"port": 7001, "targetPort": 7000}]}
    metadata = {"name": "master", "namespace": "default"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": spec,
    }
    (service,) = cluster.apply(service)
    address = service["spec"]["clusterIP"]
    program = (
        "import os,socket;s=socket.create_server((os.environ['IP'],7000));print('up',flush=1)"
        "\nwhile 1: c=s.accept()[0]; c.sendall(c.recv(9)+b' '+os.environ['IP'].encode());"
        " c.close()"
    )
    item = pod("p", ["python", "-c", program])
    item["metadata"]["labels"] = {"app": "x"}
    field = {"fieldRef": {"fieldPath": "status.podIP"}}
    item["spec"]["containers"][0]["env"] = [{"name": "IP", "valueFrom": field}]
    cluster.apply(item)
    has_said(cluster, "up")
    cluster.wait_for(lambda: condition(cluster, "Ready").get("status") == "True")
    with socket.create_connection((address, 7001), 10) as line:
        line.sendall(b"hello")
        assert line.recv(99).decode() == f"hello {status(cluster)['podIP']}"
    cluster.apply(shell("q", "echo $MASTER_SERVICE_HOST:$MASTER_SERVICE_PORT"))
    ended(cluster, "q")
    assert cluster.logs("q") == f"{address}:7001\n"
    cluster.delete("Service", "master")


def test_node_that_is_reclaimed_says_so_and_goes(cluster):
    cluster.add_node("spot", extended={"spot": "1"})
    item = pod("p")
    item["spec"]["containers"][0]["resources"] = {"limits": {"spot": "1"}}
    cluster.apply(item)
    cluster.wait_for(lambda: is_running(cluster))
    cluster.reclaim("spot", notice_s=600)
    taints = lambda: cluster.get("Node", "spot")["spec"].get("taints", [])
    assert [one["key"] for one in taints()] == [RECLAIM_TAINT]
    assert condition(cluster, "DisruptionTarget")["status"] == "True"
    cluster.cancel_reclaim("spot")
    assert taints() == []
    assert condition(cluster, "DisruptionTarget")["status"] == "False"
    cluster.reclaim("spot", notice_s=0.05)
    cluster.wait_for(lambda: cluster.get("Node", "spot") is None)
    cluster.wait_for(lambda: cluster.get("Pod", "p") is None)


def test_node_that_fails_tells_nobody(cluster):
    cluster.add_node("bad", extended={"bad": "1"})
    item = shell("p", "echo pid $$$$; sleep 100")
    item["spec"]["containers"][0]["resources"] = {"limits": {"bad": "1"}}
    cluster.apply(item)
    has_said(cluster, "pid")
    pid = int(cluster.logs("p").split()[1])
    cluster.fail_node("bad")
    cluster.wait_for(lambda: not is_alive(pid))
    assert is_running(cluster)
    assert condition(cluster, "Ready")["status"] == "False"
    cluster.remove_node("bad")
    assert cluster.get("Pod", "p") is None


def test_pod_waits_for_a_node(cluster):
    item = pod("low", nodeSelector={"pool": "small"}, cpu="1")
    cluster.apply(item)
    unscheduled = lambda: condition(cluster, "PodScheduled", "low").get("reason")
    cluster.wait_for(lambda: unscheduled() == "Unschedulable")
    cluster.wait_for(
        lambda: any(e["reason"] == "FailedScheduling" for e in cluster.list("ev"))
    )
    cluster.add_node("small", cpu="1", labels={"pool": "small"})
    cluster.wait_for(lambda: is_running(cluster, "low"))
    cluster.remove_node("small")


def test_folder_of_an_earlier_cluster_may_be_used_again(tmp_path):
    texts = []
    for _ in range(2):
        with ClusterDouble(nodes=0, run="simulated", folder=tmp_path) as cluster:
            texts.append(cluster.kubeconfig.read_text())
            assert cluster.token in texts[-1]
            assert cluster.url in texts[-1]
    assert texts[0] != texts[1]


PROGRAM = """
import sys
from drivetrain_cluster_double import ClusterDouble
with ClusterDouble(nodes=1) as cluster:
    metadata = {"name": "p", "namespace": "default"}
    command = ["sh", "-c", "setsid sleep 100 & echo $$$$ $!; sleep 100"]
    main = {"name": "main", "image": "none", "command": command}
    spec = {"containers": [main]}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    cluster.wait_for(lambda: len(cluster.logs("p").split()) == 2)
    print(cluster.logs("p"), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["killed", "left"])
def test_double_leaves_no_process_behind(how, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    )
    with process:
        pids = [int(text) for text in process.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        files = [os.pidfd_open(pid) for pid in pids]
        if how == "killed":
            process.send_signal(signal.SIGKILL)
        else:
            process.stdin.close()
        process.wait(60)
    for file in files:
        # Readable when the process has ended.
        poll = select.poll()
        poll.register(file)
        assert poll.poll(10_000)
        os.close(file)
    assert how == "killed" or list(tmp_path.iterdir()) == []


def test_program_runs_a_cluster_until_it_is_told_to_end(tmp_path):
    file = tmp_path / "config"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "drivetrain_cluster_double"),
            *("--nodes", "2", "--run", "simulated", "--kubeconfig", str(file)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == f"export KUBECONFIG={file}\n"
        assert '"token"' in file.read_text()
        assert file.stat().st_mode & 0o077 == 0
        process.terminate()
        assert process.wait(60) == 0


def test_pod_that_has_ended_is_not_run_again_by_a_change_that_is_told_late():
    with ClusterDouble(nodes=1, run="simulated") as cluster:
        changes = []
        unsubscribe = cluster.api.store.subscribe(changes.append)
        cluster.apply(shell("p", "true", restartPolicy="Never"))
        cluster.wait_for(lambda: is_running(cluster))
        cluster.kill("p")
        assert ended(cluster)["exitCode"] == 137
        unsubscribe()
        for change in changes:
            cluster._kubelet._note(change)
        # It acts in order: what it does after them comes last.
        cluster.apply(pod("q"))
        cluster.wait_for(lambda: is_running(cluster, "q"))
        assert status(cluster)["phase"] == "Failed"


def test_pod_of_a_taken_name_has_written_nothing_before_it_begins(cluster):
    cluster.apply(shell("p", "echo one"))
    ended(cluster)
    assert cluster.logs("p") == "one\n"
    cluster.delete("Pod", "p")
    cluster.wait_for(lambda: cluster.get("Pod", "p") is None)
    assert cluster.logs("p") == "one\n"
    cluster.apply(shell("p", "echo two", nodeSelector={"there": "is-none"}))
    assert cluster.logs("p") == ""
