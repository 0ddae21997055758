"""What the double decides without a server: selectors, garbage, places, roles, faults."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from double_samples import pod
from drivetrain_cluster_double import (
    environment,
    garbage,
    removal,
    scheduling,
    selectors,
)
from drivetrain_cluster_double.authorize import allows
from drivetrain_cluster_double.errors import StatusError
from drivetrain_cluster_double.faults import Fault, Faults
from drivetrain_cluster_double.removal import DeleteOptions
from drivetrain_cluster_double.routes import Call, read_call
from drivetrain_cluster_double.scheduling import Load, Place
from drivetrain_cluster_double.store import Key

from drivetrain_cloud.kubernetes.quantities import read_quantity
from drivetrain_core import ProgramError

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "labels", "holds"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b,c!=d", {"a": "b"}, True),
        ("a!=b", {"a": "b"}, False),
        ("a in (x, y)", {"a": "y"}, True),
        ("a notin (x,y)", {}, True),
        ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False),
        ("n>5", {"n": "6"}, True),
        ("n<5", {"n": "x"}, False),
        ("example.com/a-b=c.d", {"example.com/a-b": "c.d"}, True),
    ],
)
def test_selector_of_labels(text, labels, holds):
    item = {"metadata": {"labels": labels}}
    assert selectors.parse_labels(text).matches(item) == holds


@pytest.mark.parametrize("text", ["a=b=c", "a in x", "=b", "a,,b", "a in (x"])
def test_selector_that_cannot_be_read_is_refused(text):
    with pytest.raises(StatusError) as error:
        selectors.parse_labels(text)
    assert error.value.code == 400


def test_selector_of_fields_refuses_what_cannot_be_selected():
    allowed = frozenset({"spec.nodeName"})
    found = selectors.parse_fields("spec.nodeName!=a", allowed)
    assert found.matches({"metadata": {}, "spec": {}})
    with pytest.raises(StatusError, match=r"field label not supported: spec\.other"):
        selectors.parse_fields("spec.other=a", allowed)


@pytest.mark.parametrize(
    ("method", "path", "query", "found"),
    [
        ("GET", "/api/v1/pods", {}, Call("list", "", "v1", "pods")),
        ("GET", "/api/v1/pods", {"watch": "1"}, Call("watch", "", "v1", "pods")),
        (
            "GET",
            "/api/v1/watch/namespaces/a/pods",
            {},
            Call("watch", "", "v1", "pods", "a"),
        ),
        (
            "GET",
            "/api/v1/namespaces/a",
            {},
            Call("get", "", "v1", "namespaces", "", "a"),
        ),
        (
            "PUT",
            "/api/v1/namespaces/a/finalize",
            {},
            Call("update", "", "v1", "namespaces", "", "a", "finalize"),
        ),
        (
            "DELETE",
            "/apis/g.io/v2/namespaces/a/things",
            {},
            Call("deletecollection", "g.io", "v2", "things", "a"),
        ),
        (
            "PATCH",
            "/apis/g.io/v2/namespaces/a/things/b/status",
            {},
            Call("patch", "g.io", "v2", "things", "a", "b", "status"),
        ),
        ("GET", "/api/v1/namespaces/a/pods/b/log/c", {}, None),
        ("GET", "/metrics", {}, None),
        ("GET", "/apis/apps/v1", {}, None),
    ],
    ids=str,
)
def test_path_means_a_call(method, path, query, found):
    assert read_call(method, path, query) == found


def owned(*uids, **metadata):
    references = [{"uid": uid, "blockOwnerDeletion": True} for uid in uids]
    return {"metadata": {"ownerReferences": references, **metadata}}


THERE = {"metadata": {}}
WAITING = {"metadata": {"deletionTimestamp": "t", "finalizers": [removal.FOREGROUND]}}


@pytest.mark.parametrize(
    ("item", "owners", "has_dependents", "fate"),
    [
        (owned("1"), {"1": THERE}, False, ("", set())),
        (owned("1"), {"1": None}, False, ("Background", set())),
        (owned("1", "2"), {"1": None, "2": THERE}, False, ("", {"1"})),
        (owned("1", "2"), {"1": WAITING, "2": THERE}, False, ("", {"1"})),
        (owned("1"), {"1": WAITING}, False, ("Background", set())),
        (owned("1"), {"1": WAITING}, True, ("Foreground", set())),
        (owned("1", deletionTimestamp="t"), {"1": None}, False, ("", set())),
        (
            owned("1", finalizers=[removal.ORPHAN]),
            {"1": None},
            False,
            ("Orphan", set()),
        ),
        (owned(), {}, False, ("", set())),
    ],
    ids=range(9),
)
def test_garbage_follows_its_owners(item, owners, has_dependents, fate):
    found = garbage.decide(item, owners, has_dependents=has_dependents)
    assert (found.propagation, set(found.lost_uids)) == fate


def test_owner_waits_for_those_that_block_it():
    assert not garbage.is_released("1", [owned("1")])
    assert garbage.is_released("1", [owned("2")])
    assert garbage.without_owners(owned("1"), ["1"]) == {"metadata": {}}


def running_pod(**metadata):
    item = pod()
    item["metadata"] |= {"uid": "u", **metadata}
    item["spec"] |= {"nodeName": "n", "terminationGracePeriodSeconds": 7}
    return {**item, "status": {"phase": "Running"}}


def test_deletion_of_a_running_pod_takes_its_time():
    found = removal.remove(running_pod(), DeleteOptions(), NOW)
    assert not found.is_gone
    assert found.item["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:07Z"
    again = removal.remove(found.item, DeleteOptions(grace_s=60), NOW)
    assert again.item == found.item
    assert removal.remove(found.item, DeleteOptions(grace_s=0), NOW).is_gone


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
def test_deletion_of_a_pod_that_does_not_run_is_quick(phase):
    item = {**running_pod(), "status": {"phase": phase}}
    if phase == "Pending":
        item["spec"] = {k: v for k, v in item["spec"].items() if k != "nodeName"}
    assert removal.remove(item, DeleteOptions(), NOW).is_gone


def test_deletion_waits_for_finalizers_and_marks_what_becomes_of_others():
    item = {"kind": "Widget", "metadata": {"finalizers": ["a/b"], "generation": 1}}
    found = removal.remove(item, DeleteOptions(propagation="Foreground"), NOW)
    metadata = found.item["metadata"]
    assert (found.is_gone, metadata["generation"]) == (False, 2)
    assert metadata["finalizers"] == ["a/b", removal.FOREGROUND]
    other = removal.remove(found.item, DeleteOptions(propagation="Orphan"), NOW)
    assert other.item["metadata"]["finalizers"] == ["a/b", removal.ORPHAN]
    with pytest.raises(StatusError, match="propagationPolicy"):
        DeleteOptions.read({"propagationPolicy": "Sideways"}, {})


def place(name="n", cpu=4.0, *loads, taints=(), **labels):
    node = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": list(taints)},
    }
    used = {"cpu": sum(one.requests["cpu"] for one in loads), "pods": float(len(loads))}
    return Place(node, {"cpu": cpu, "pods": 3.0}, used, {one.key: one for one in loads})


def load(name, priority, cpu):
    return Load(Key("default", name), priority, {"cpu": cpu, "pods": 1})


def test_pod_goes_where_there_is_room():
    places = [place("a", 4.0, load("x", 0, 3.0)), place("b")]
    assert scheduling.choose_node(pod(cpu="2"), places).node == "b"
    found = scheduling.choose_node(pod(cpu="5"), places)
    assert (found.node, found.victims) == ("", ())
    assert found.reason == "0/2 nodes are available: 2 Insufficient cpu."
    assert "there are none" in scheduling.choose_node(pod(), []).reason


def test_pod_goes_where_its_selector_and_its_tolerations_let_it():
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    places = [place("a", taints=[taint]), place("b", zone="z")]
    choose = lambda **spec: scheduling.choose_node(pod(**spec), places)
    assert choose().node == "b"
    assert choose(nodeSelector={"zone": "y"}).node == ""
    tolerated = [{"key": "k", "operator": "Exists"}]
    assert choose(tolerations=tolerated).node == "a"
    other = [{"key": "k", "value": "w", "effect": "NoSchedule"}]
    assert choose(tolerations=other).node == "b"
    term = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["z"]}]}
    required = {"nodeSelectorTerms": [term]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    found = choose(affinity={"nodeAffinity": affinity})
    assert "1 node(s) had untolerated taint {k: v}" in found.reason
    assert "1 node(s) didn't match" in found.reason


def test_pods_of_a_lower_priority_give_way():
    loads = [load("low", 1, 2.0), load("lower", 0, 1.0), load("high", 9, 1.0)]
    places = [place("a", 4.0, *loads)]
    find = lambda cpu, **spec: scheduling.choose_node(
        pod(cpu=cpu, priority=5, **spec), places
    )
    assert [key.name for key in find("1").victims] == ["lower"]
    assert [key.name for key in find("3").victims] == ["lower", "low"]
    assert find("4").victims == ()
    assert find("1", preemptionPolicy="Never").victims == ()


def test_command_and_variables_of_a_pod():
    item = running_pod(labels={"a": "b"})
    item["status"]["podIP"] = "127.10.0.1"
    container = item["spec"]["containers"][0]
    container["args"] = ["$(HOST):$(SVC_SERVICE_PORT)", "$$(HOST)", "$(WHAT)"]
    field = lambda path: {"valueFrom": {"fieldRef": {"fieldPath": path}}}
    container["env"] = [
        {"name": "HOST", **field("status.podIP")},
        {"name": "LABEL", **field("metadata.labels['a']")},
        {"name": "URL", "value": "tcp://$(HOST)"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "EMPTY"},
    ]
    container["envFrom"] = [{"prefix": "C_", "configMapRef": {"name": "c"}}]
    data = {
        ("Secret", "s"): {"kind": "Secret", "data": {"k": "dmFsdWU="}},
        ("ConfigMap", "c"): {"kind": "ConfigMap", "data": {"x": "1"}},
    }
    find = lambda kind, name: data.get((kind, name))
    launch = environment.plan_launch(item, {"SVC_SERVICE_PORT": "80"}, find)
    assert launch.command == ["sleep", "100", "127.10.0.1:80", "$(HOST)", "$(WHAT)"]
    assert launch.variables == {
        "SVC_SERVICE_PORT": "80",
        "C_x": "1",
        "HOST": "127.10.0.1",
        "LABEL": "b",
        "URL": "tcp://127.10.0.1",
        "KEY": "value",
        "EMPTY": "",
    }
    data.clear()
    with pytest.raises(environment.LaunchError, match='configmap "c" not found'):
        environment.plan_launch(item, {}, find)
    del container["command"], container["envFrom"], container["env"]
    with pytest.raises(environment.LaunchError, match="has no command"):
        environment.plan_launch(item, {}, find)


@pytest.mark.parametrize(
    ("rule", "call", "is_allowed"),
    [
        ({"resources": ["pods"]}, Call("get", "", "v1", "pods"), True),
        ({"resources": ["pods"]}, Call("get", "apps", "v1", "pods"), False),
        ({"resources": ["pods"]}, Call("list", "", "v1", "pods"), False),
        ({"resources": ["*"]}, Call("get", "", "v1", "pods", subresource="log"), True),
        ({"resources": ["pods/log"]}, Call("get", "", "v1", "pods"), False),
        (
            {"resources": ["*/log"]},
            Call("get", "", "v1", "pods", subresource="log"),
            True,
        ),
        (
            {"resources": ["pods"], "resourceNames": ["a"]},
            Call("get", "", "v1", "pods", "n", "b"),
            False,
        ),
    ],
    ids=str,
)
def test_rule_of_a_role(rule, call, is_allowed):
    assert allows({"apiGroups": [""], "verbs": ["get"], **rule}, call) == is_allowed


def test_faults_come_in_turn_and_as_often_as_ordered():
    faults = Faults()
    faults.add(Fault(verb="get", status=500, skip=1, times=2))
    faults.add(Fault(resource="pods/status", status=409))
    get, patch = (
        Call("get", "", "v1", "pods"),
        Call("patch", "", "v1", "pods", subresource="status"),
    )
    statuses = [
        (f := faults.take(c)) and f.status for c in (get, patch, get, patch, get, get)
    ]
    assert statuses == [None, 409, 500, None, 500, None]
    assert faults.num_waiting == 0
    faults.hook = lambda call: Fault(drop=True) if call.verb == "get" else None
    assert faults.take(get).drop
    assert faults.take(patch) is None


@pytest.mark.parametrize(
    "options",
    [{}, {"status": 200}, {"drop": True, "times": 0}, {"drop": True, "skip": -1}],
)
def test_fault_that_makes_no_sense_is_refused(options):
    with pytest.raises(ProgramError):
        Fault(**options)


@pytest.mark.parametrize(
    ("text", "number"), [("1", 1), ("100m", 0.1), ("1.5Gi", 1.5 * 2**30), ("2k", 2000)]
)
def test_quantity_is_read(text, number):
    assert read_quantity(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1GB"])
def test_quantity_that_is_none_is_refused(text):
    with pytest.raises(ProgramError, match="amount"):
        read_quantity(text)
