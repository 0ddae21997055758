"""What the double decides without a server: selectors, garbage, places, roles, faults."""

from __future__ import annotations

import pytest
from double_samples import pod
from drivetrain_cluster_double import api, environment, scheduler, selectors
from drivetrain_cluster_double.api import DeleteOptions
from drivetrain_cluster_double.authorize import allows
from drivetrain_cluster_double.errors import StatusError
from drivetrain_cluster_double.faults import Fault, Faults
from drivetrain_cluster_double.routes import Call, read_call
from drivetrain_cluster_double.scheduler import Place
from drivetrain_cluster_double.selectors import Selector

from drivetrain_cloud.kubernetes.quantities import read_quantity
from drivetrain_core import ProgramError


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
    assert Selector(selectors.parse_labels(text)).matches(item) == holds


@pytest.mark.parametrize(
    "text", ["a=b=c", "a in x", "=b", "a,,b", "a in (x", "a=" + 64 * "x"]
)
def test_selector_that_cannot_be_read_is_refused(text):
    with pytest.raises(StatusError) as error:
        selectors.parse_labels(text)
    assert error.value.code == 400


def test_selector_of_fields_refuses_what_cannot_be_selected():
    allowed = frozenset({"spec.nodeName"})
    found = Selector(fields=selectors.parse_fields("spec.nodeName!=a", allowed))
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


def running_pod(**metadata):
    item = pod()
    item["metadata"] |= {"uid": "u", **metadata}
    item["spec"] |= {"nodeName": "n", "terminationGracePeriodSeconds": 7}
    return {**item, "status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("phase", "node", "asked", "grace_s"),
    [
        ("Running", "n", None, 7),
        ("Running", "n", 60, 60),
        ("Running", "n", 0, 0),
        ("Pending", "", None, 0),
        ("Succeeded", "n", None, 0),
        ("Failed", "n", 60, 0),
    ],
)
def test_deletion_of_a_pod_takes_its_time_while_it_runs(phase, node, asked, grace_s):
    item = {**running_pod(), "status": {"phase": phase}}
    item["spec"]["nodeName"] = node
    assert api.grace_of(item, DeleteOptions(grace_s=asked)) == grace_s
    assert api.grace_of({"kind": "Widget"}, DeleteOptions(grace_s=60)) == 0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"propagationPolicy": "Sideways"}, 422),
        ({"propagationPolicy": "Background", "orphanDependents": False}, 422),
        ({"propagationPolicy": "Foreground"}, 501),
        ({"orphanDependents": True}, 501),
        ({"dryRun": ["All"]}, 501),
        ({"gracePeriodSeconds": "soon"}, 400),
    ],
    ids=str,
)
def test_deletion_that_is_not_done_is_refused(options, code):
    with pytest.raises(StatusError) as error:
        DeleteOptions.read(options, {})
    assert error.value.code == code


def place(name="n", cpu=4.0, used=0.0, taints=(), **labels):
    node = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": list(taints)},
    }
    return Place(node, {"cpu": cpu, "pods": 3.0}, {"cpu": used})


def test_pod_goes_where_there_is_room():
    places = [place("a", 4.0, 3.0), place("b")]
    assert scheduler.choose_node(pod(cpu="2"), places)[0] == "b"
    node, reason = scheduler.choose_node(pod(cpu="5"), places)
    assert node == ""
    assert reason == "0/2 nodes are available: 2 Insufficient cpu."
    assert "there are none" in scheduler.choose_node(pod(), [])[1]


def test_pod_goes_where_its_selector_and_its_tolerations_let_it():
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    places = [place("a", taints=[taint]), place("b", zone="z")]
    choose = lambda **spec: scheduler.choose_node(pod(**spec), places)
    assert choose()[0] == "b"
    assert choose(nodeSelector={"zone": "y"})[0] == ""
    tolerated = [{"key": "k", "operator": "Exists"}]
    assert choose(tolerations=tolerated)[0] == "a"
    other = [{"key": "k", "value": "w", "effect": "NoSchedule"}]
    assert choose(tolerations=other)[0] == "b"
    assert "2 node(s) didn't match" in choose(nodeSelector={"zone": "y"})[1]
    tainted = scheduler.choose_node(pod(tolerations=other), places[:1])
    assert tainted[1].endswith("1 node(s) had untolerated taint {k: v}.")


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
    data = {"s": {"kind": "Secret", "data": {"k": "dmFsdWU="}}}
    launch = environment.plan_launch(item, {"SVC_SERVICE_PORT": "80"}, data.get)
    assert launch.command == ["sleep", "100", "127.10.0.1:80", "$(HOST)", "$(WHAT)"]
    assert launch.variables == {
        "SVC_SERVICE_PORT": "80",
        "HOST": "127.10.0.1",
        "LABEL": "b",
        "URL": "tcp://127.10.0.1",
        "KEY": "value",
        "EMPTY": "",
    }
    data.clear()
    with pytest.raises(environment.LaunchError, match="couldn't find key k"):
        environment.plan_launch(item, {}, data.get)
    del container["command"], container["env"]
    with pytest.raises(environment.LaunchError, match="has no command"):
        environment.plan_launch(item, {}, data.get)
    container["envFrom"] = [{"configMapRef": {"name": "c"}}]
    with pytest.raises(environment.LaunchError, match="does not do envFrom"):
        environment.plan_launch(item, {}, data.get)


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
