"""Clients that others wrote find the double to be a cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading

import pytest
from double_samples import GROUP, clean_up, config, definition, pod, widget
from drivetrain_cluster_double import ClusterDouble, Fault

pytestmark = pytest.mark.extra


@pytest.fixture(scope="module")
def shared():
    with ClusterDouble(nodes=1, run="simulated") as cluster:
        cluster.apply(definition())
        yield cluster


@pytest.fixture
def cluster(shared):
    yield shared
    shared.faults.clear()
    clean_up(shared)


# The client of the Kubernetes project


@pytest.fixture
def official(cluster):
    kubernetes = pytest.importorskip("kubernetes")
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(
        str(cluster.kubeconfig), client_configuration=configuration
    )
    with kubernetes.client.ApiClient(configuration) as client:
        yield client


def test_official_client_makes_and_follows_custom_objects(official, cluster):
    import kubernetes

    api = kubernetes.client.CustomObjectsApi(official)
    where = (GROUP, "v1", "default", "widgets")
    api.create_namespaced_custom_object(*where, widget())
    api.patch_namespaced_custom_object_status(*where, "a", {"status": {"replicas": 1}})
    api.patch_namespaced_custom_object_scale(*where, "a", {"spec": {"replicas": 3}})
    found = api.list_namespaced_custom_object(*where)
    (item,) = found["items"]
    assert (item["spec"]["replicas"], item["status"]["replicas"]) == (3, 1)
    with pytest.raises(kubernetes.client.ApiException) as error:
        api.create_namespaced_custom_object(*where, widget("b", replicas=-1))
    body = json.loads(error.value.body)
    assert body["details"]["causes"][0]["field"] == "spec.replicas"
    watch, seen = kubernetes.watch.Watch(), []
    at = found["metadata"]["resourceVersion"]
    api.delete_namespaced_custom_object(*where, "a")
    for event in watch.stream(
        api.list_namespaced_custom_object,
        *where,
        resource_version=at,
        timeout_seconds=5,
    ):
        seen.append(event["type"])
        watch.stop()
    assert seen == ["DELETED"]


@pytest.mark.slow
def test_official_client_reads_pods_as_objects(official, cluster):
    import kubernetes

    core = kubernetes.client.CoreV1Api(official)
    core.create_namespaced_pod("default", pod())
    running = lambda: core.read_namespaced_pod("p", "default").status.phase == "Running"
    cluster.wait_for(running)
    item = core.list_pod_for_all_namespaces(
        field_selector="status.phase=Running"
    ).items[0]
    assert item.status.container_statuses[0].state.running.started_at
    assert item.spec.node_name == core.list_node().items[0].metadata.name
    core.delete_namespaced_pod("p", "default")
    cluster.wait_for(lambda: cluster.get("Pod", "p") is None)


def test_official_client_holds_a_lease_against_others(official, cluster):
    import kubernetes

    api = kubernetes.client.CoordinationV1Api(official)
    lease = {"metadata": {"name": "leader"}, "spec": {"holderIdentity": "one"}}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease}
    api.create_namespaced_lease("default", lease)
    first, second = (api.read_namespaced_lease("leader", "default") for _ in range(2))
    first.spec.holder_identity = "two"
    api.replace_namespaced_lease("leader", "default", first)
    second.spec.holder_identity = "three"
    with pytest.raises(kubernetes.client.ApiException) as error:
        api.replace_namespaced_lease("leader", "default", second)
    assert error.value.status == 409


def test_official_client_starts_a_watch_again_that_was_dropped(official, cluster):
    import kubernetes
    import urllib3

    core = kubernetes.client.CoreV1Api(official)
    cluster.faults.add(Fault(verb="watch", drop=True, after_events=1))
    for name in ("a", "b", "c"):
        core.create_namespaced_config_map("default", config(name))
    watch, names = kubernetes.watch.Watch(), set()
    while len(names) < 3:
        try:
            for event in watch.stream(
                core.list_namespaced_config_map, "default", timeout_seconds=5
            ):
                names.add(event["object"].metadata.name)
                if len(names) == 3:
                    watch.stop()
        except urllib3.exceptions.HTTPError:
            names.add("a")  # which was told before
    assert names == {"a", "b", "c"}
    assert cluster.calls["watch", "configmaps"] >= 2


# kubectl


@pytest.fixture
def kubectl(cluster, tmp_path):
    if not shutil.which("kubectl"):
        pytest.skip("no kubectl on the PATH")

    def run(*arguments, stdin=None, fails=False):
        done = subprocess.run(
            ["kubectl", *arguments],
            env={
                **os.environ,
                "KUBECONFIG": str(cluster.kubeconfig),
                "HOME": str(tmp_path),
            },
            input=json.dumps(stdin) if stdin else None,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    return run


def test_kubectl_applies_shows_scales_and_deletes(kubectl, cluster):
    apply = ("apply", "-f", "-")
    assert "created" in kubectl(*apply, stdin=widget())
    assert "unchanged" in kubectl(*apply, stdin=widget())
    assert "configured" in kubectl(*apply, stdin=widget(replicas=2))
    lines = kubectl("get", "wd").splitlines()
    assert [line.split() for line in lines] == [["NAME", "REPLICAS"], ["a", "2"]]
    assert "scaled" in kubectl("scale", "widget/a", "--replicas=4")
    assert cluster.get("Widget", "a")["spec"]["replicas"] == 4
    text = kubectl("describe", "widget", "a")
    assert "Replicas:" in text
    wait = ("wait", "--for=jsonpath={.status.seen}=x", "widget/a", "--timeout=20s")
    timer = threading.Timer(
        0.2,
        lambda: kubectl(
            *("patch", "widget", "a", "--subresource=status", "--type=merge"),
            *("-p", '{"status":{"seen":"x"}}'),
        ),
    )
    timer.start()
    assert "condition met" in kubectl(*wait)
    timer.join()
    assert "deleted" in kubectl("delete", "widget", "a")


def test_kubectl_tells_what_the_server_refuses(kubectl):
    apply = ("apply", "-f", "-")
    assert "replicas exceed maxReplicas" in kubectl(
        *apply, stdin=widget(replicas=9), fails=True
    )
    assert 'unknown field "spec.what"' in kubectl(
        *apply, stdin=widget(what=1), fails=True
    )
    assert "does not do that" in kubectl(
        "apply", "--server-side", "-f", "-", stdin=widget(), fails=True
    )
    assert "NotFound" in kubectl("get", "widget", "none", fails=True)


def test_kubectl_follows_pods(kubectl, cluster):
    kubectl("apply", "-f", "-", stdin=pod())
    kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=20s")
    lines = kubectl("get", "pods", "-o", "wide").splitlines()
    assert lines[1].split()[:3] == ["p", "True", "Running"]
    assert "Node:" in kubectl("describe", "pod", "p")
    assert "Ready" in kubectl("get", "nodes")
    kubectl("delete", "pod", "p", "--wait")
    assert cluster.get("Pod", "p") is None
    assert "widgets" in kubectl("api-resources")
