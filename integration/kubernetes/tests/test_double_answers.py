"""Questions, and what kube-apiserver 1.36 answers to them: code, reason and causes."""

from __future__ import annotations

import copy

import pytest
from double_samples import (
    CONFIGS,
    GROUP,
    PODS,
    WIDGETS,
    config,
    definition,
    pod,
    widget,
)

pytestmark = pytest.mark.extra

CORE = "/api/v1/namespaces/default"
SERVICES, SECRETS = f"{CORE}/services", f"{CORE}/secrets"
NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE, JSON, STRATEGIC = (
    f"{name}-patch+json" for name in ("merge", "json", "strategic-merge")
)
GOOD, MADE = (200, None, None), (201, None, None)


def bad(reason="BadRequest", code=400):
    """Returns a refusal that names no field."""
    return code, reason, []


def wrong(*causes):
    """Returns a refusal that names fields, each as `Reason field`."""
    pairs = (one.split(" ", 1) for one in causes)
    return (
        422,
        "Invalid",
        sorted([f"FieldValue{reason}", field] for reason, field in pairs),
    )


GONE, TAKEN, STALE = (
    bad("NotFound", 404),
    bad("AlreadyExists", 409),
    bad("Conflict", 409),
)
UNDONE = bad("Invalid", 422)


def meta(**more):
    """Returns a ConfigMap with more metadata."""
    item = config("new")
    return {**item, "metadata": {**item["metadata"], **more}}


def container(**more):
    """Returns a pod that nobody schedules, whose container has more."""
    item = pod("new", schedulerName="nobody")
    item["spec"]["containers"][0] |= more
    return item


def service(name="new", **spec):
    """Returns a service."""
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


def event(**more):
    """Returns an event of the newer group."""
    about = {"kind": "ConfigMap", "name": "there", "namespace": "default"}
    names = {"reportingController": "test.dev/c", "reportingInstance": "i"}
    said = {"reason": "Seen", "action": "See", "note": "it", "type": "Normal"}
    at = {"eventTime": "2026-01-01T00:00:00.000000Z"}
    return {
        "metadata": {"name": "e"},
        "regarding": about,
        **names,
        **said,
        **at,
        **more,
    }


def without(item, key):
    """Returns an object that lacks a field."""
    return {name: value for name, value in item.items() if name != key}


def defined(change=None, spec=None, root=None, **metadata):
    """Returns a definition, changed where it is said."""
    item = definition()
    item["metadata"] = {"name": f"gears.{GROUP}", **metadata}
    item["spec"]["names"] = {"plural": "gears", "singular": "gear", "kind": "Gear"}
    known = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, **(change or {})},
    }
    shape = root or {
        "type": "object",
        "properties": {"spec": {**known, **(spec or {})}},
    }
    item["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = shape
    return item


def rules(*texts, **more):
    """Returns rules."""
    return {"x-kubernetes-validations": [{"rule": text, **more} for text in texts]}


SPEC = "spec.validation.openAPIV3Schema.properties[spec]"
X = f"{SPEC}.properties[x]"
RULE = f"{SPEC}.x-kubernetes-validations[0]"
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
OPTION = {"containers": [{"name": "main", "image": "other"}]}
ENV = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
OWNER = {"apiVersion": "v1", "kind": "Pod", "controller": True}
OWNERS = [{**OWNER, "name": name, "uid": name} for name in ("one", "two")]
GPU = "nvidia.com/gpu"
UNKNOWN = {
    "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.x"}}}]
}
KEYED = {"type": "array", "x-kubernetes-list-type": "map"}
ITEMS = {"type": "object", "properties": {"k": TEXT}}

# One line is a question: what is asked for, and what comes.
ANSWERS = [
    # Objects of any kind
    ("POST", CONFIGS, meta(), MADE),
    ("POST", CONFIGS, without(meta(), "metadata"), wrong("Required metadata.name")),
    ("POST", CONFIGS, config("there"), TAKEN),
    ("POST", CONFIGS, meta(name="Big_"), wrong("Invalid metadata.name")),
    ("POST", CONFIGS, meta(namespace="elsewhere"), bad()),
    ("POST", CONFIGS, meta(resourceVersion="7"), bad(None, 500)),
    ("POST", CONFIGS, meta(labels={"a": "no good"}), wrong("Invalid metadata.labels")),
    ("POST", CONFIGS, meta(annotations={"a": "x" * 270_000}), wrong("TooLong metadata.annotations")),
    ("POST", CONFIGS, meta(ownerReferences=OWNERS), wrong("Invalid metadata.ownerReferences")),
    ("POST", CONFIGS, meta(finalizers=["mine"]), wrong("Invalid metadata.finalizers[0]")),
    ("POST", CONFIGS, {**meta(), "kind": "Pod"}, bad()),
    ("POST", CONFIGS, {**meta(), "data": {"a": 1}}, bad()),
    ("POST", CONFIGS, b"{", bad()),
    ("POST", f"{CONFIGS}?fieldValidation=Strict", {**meta(), "what": 1}, bad()),
    ("POST", f"{CONFIGS}?fieldValidation=Warn", {**meta(), "what": 1}, MADE),
    ("POST", CONFIGS.replace("default", "nowhere"), meta(), GONE),
    ("PUT", f"{CONFIGS}/there", config("there"), GOOD),
    ("PUT", f"{CONFIGS}/there", config("other"), bad()),
    ("PUT", f"{CONFIGS}/there", meta(name="there", resourceVersion="1"), STALE),
    ("PUT", f"{CONFIGS}/there", meta(name="there", uid="u"), STALE),
    ("PUT", f"{CONFIGS}/none", config("none"), GONE),
    (MERGE, f"{CONFIGS}/there", {"data": {"a": "2"}}, GOOD),
    (MERGE, f"{CONFIGS}/none", {"data": {"a": "2"}}, GONE),
    (MERGE, f"{CONFIGS}/there", [1], bad()),
    (MERGE, f"{CONFIGS}/there", {"metadata": {"name": "other"}}, bad()),
    (MERGE, f"{CONFIGS}/there", {"metadata": {"resourceVersion": "1"}, "data": {"a": "1"}}, STALE),
    (MERGE, f"{CONFIGS}/there", {"metadata": {"uid": "u"}}, wrong(*["Invalid metadata.uid"] * 2)),
    (MERGE, f"{CONFIGS}/there?force=true", {}, wrong("Forbidden force")),
    (JSON, f"{CONFIGS}/there", [{"op": "add", "path": "/data", "value": {}}], GOOD),
    (JSON, f"{CONFIGS}/there", [{"op": "test", "path": "/kind", "value": "Pod"}], UNDONE),
    (JSON, f"{CONFIGS}/there", [{"op": "remove", "path": "/spec"}], UNDONE),
    (JSON, f"{CONFIGS}/there", [{"op": "invert", "path": "/kind"}], UNDONE),
    (JSON, f"{CONFIGS}/there", {"op": "test"}, bad()),
    ("json", f"{CONFIGS}/there", {}, bad("UnsupportedMediaType", 415)),
    ("DELETE", f"{CONFIGS}/none", None, GONE),
    ("DELETE", f"{CONFIGS}/there", {"preconditions": {"uid": "u"}}, STALE),
    ("DELETE", f"{CONFIGS}/there", {"preconditions": {"resourceVersion": "1"}}, STALE),
    ("DELETE", f"{CONFIGS}/there?propagationPolicy=Up", None, wrong("NotSupported propagationPolicy")),
    ("DELETE", f"{CONFIGS}/there", {"propagationPolicy": "Orphan", "orphanDependents": True}, wrong("Invalid propagationPolicy")),
    ("DELETE", f"{CONFIGS}/there", None, (200, None, [])),
    # Lists
    ("GET", f"{CONFIGS}?limit=1", None, GOOD),
    ("GET", f"{CONFIGS}?limit=-1", None, GOOD),
    ("GET", f"{CONFIGS}?limit=few", None, bad()),
    ("GET", f"{CONFIGS}?continue=here", None, bad()),
    ("GET", f"{CONFIGS}?resourceVersion=0", None, GOOD),
    ("GET", f"{CONFIGS}?resourceVersion=new", None, bad()),
    ("GET", f"{CONFIGS}?resourceVersion=88888888", None, (504, "Timeout", [["ResourceVersionTooLarge", None]])),
    ("GET", f"{CONFIGS}?labelSelector=a+in", None, bad()),
    ("GET", f"{CONFIGS}?labelSelector=%3Da", None, bad()),
    ("GET", f"{CONFIGS}?labelSelector=a%3D{'x' * 64}", None, bad()),
    ("GET", f"{CONFIGS}?fieldSelector=metadata.name%3Da", None, GOOD),
    ("GET", f"{CONFIGS}?fieldSelector=data.a%3D1", None, bad()),
    ("GET", f"{PODS}?fieldSelector=status.phase%3DRunning", None, GOOD),
    # Pods
    ("POST", PODS, container(), MADE),
    ("POST", PODS, pod("new", containers=[]), wrong("Required spec.containers")),
    ("POST", PODS, container(image=""), wrong("Required spec.containers[0].image")),
    ("POST", PODS, pod("new", containers=[{"name": "a", "image": "i"}] * 2), wrong("Duplicate spec.containers[1].name")),
    ("POST", PODS, pod("new", restartPolicy="Once"), wrong("NotSupported spec.restartPolicy")),
    ("POST", PODS, pod("new", tolerations=[{"key": "a", "tolerationSeconds": 1, "effect": "NoSchedule"}]), wrong("Invalid spec.tolerations[0].effect")),
    ("POST", PODS, container(resources={"requests": {"cpu": "many"}}), bad()),
    ("POST", PODS, container(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}), wrong("Invalid spec.containers[0].resources.requests")),
    ("POST", PODS, container(resources={"requests": {GPU: "1"}}), wrong("Required spec.containers[0].resources.limits")),
    ("POST", PODS, container(resources={"limits": {GPU: "0.5"}}), wrong(*(f"Invalid spec.containers[0].resources.{part}[{GPU}]" for part in ("limits", "requests")))),
    ("POST", PODS, container(volumeMounts=[{"name": "v", "mountPath": "/v"}]), wrong("NotFound spec.containers[0].volumeMounts[0].name")),
    ("POST", PODS, container(env=[{**ENV, "value": "a"}]), wrong("Invalid spec.containers[0].env[0].valueFrom")),
    ("POST", PODS, container(**UNKNOWN), wrong("Invalid spec.containers[0].env[0].valueFrom.fieldRef.fieldPath")),
    (STRATEGIC, f"{PODS}/there", {"spec": OPTION}, GOOD),
    (STRATEGIC, f"{PODS}/there", {"spec": {"containers": [{"name": "main", "args": ["x"]}]}}, wrong("Forbidden spec")),
    (MERGE, f"{PODS}/there", {"spec": {"nodeName": "node"}}, wrong("Forbidden spec")),
    (MERGE, f"{PODS}/there", {"status": {"phase": "Running"}}, GOOD),
    (MERGE, f"{PODS}/there/status", {"status": {"phase": "Running"}}, GOOD),
    ("GET", f"{PODS}/none/log", None, GONE),
    # Services, events, secrets, leases
    ("POST", SERVICES, service(), MADE),
    ("POST", SERVICES, service("1st"), MADE),
    ("POST", SERVICES, service("a.b"), wrong("Invalid metadata.name")),
    ("POST", SERVICES, service(ports=[]), wrong("Required spec.ports")),
    ("POST", SERVICES, service(clusterIP="here"), wrong("Invalid spec.clusterIPs[0]")),
    ("POST", SERVICES, service(clusterIP="203.0.113.7"), wrong("Invalid spec.clusterIPs")),
    ("POST", SERVICES, service(clusterIP="127.2.200.1"), wrong("Invalid spec.clusterIPs")),
    (MERGE, f"{SERVICES}/there", {"spec": {"clusterIP": "127.2.200.2"}}, wrong("Invalid spec.clusterIPs[0]")),
    ("POST", NEW_EVENTS, event(), MADE),
    ("POST", NEW_EVENTS, without(event(), "eventTime"), wrong("Required eventTime")),
    ("POST", NEW_EVENTS, event(eventTime="2026-01-01T00:00:00Z"), bad()),
    ("POST", NEW_EVENTS, event(note="ü" * 600), wrong("Invalid message")),
    ("POST", NEW_EVENTS, event(type="Strange"), wrong("Invalid type")),
    ("POST", NEW_EVENTS, event(action=""), wrong("Required action")),
    ("POST", SECRETS, {"metadata": {"name": "new"}, "stringData": {"a": "b"}}, MADE),
    ("POST", SECRETS, {"metadata": {"name": "new"}, "data": {"a": "?"}}, bad()),
    ("POST", LEASES, {"metadata": {"name": "new"}, "spec": {"leaseDurationSeconds": 0}}, wrong("Invalid spec.leaseDurationSeconds")),
    # Definitions
    ("POST", DEFINITIONS, defined(name="other"), wrong("Invalid metadata.name")),
    ("POST", DEFINITIONS, defined(root=TEXT), wrong(*["Invalid spec.validation.openAPIV3Schema.type"] * 2)),
    ("POST", DEFINITIONS, defined({"x": {}}), wrong(f"Required {X}.type")),
    ("POST", DEFINITIONS, defined({"x": {"type": "number of"}}), wrong(f"NotSupported {X}.type")),
    ("POST", DEFINITIONS, defined({"x": {"type": "array"}}), wrong(f"Required {X}.items")),
    ("POST", DEFINITIONS, defined({"x": {"$ref": "#/a"}}), wrong(f"Forbidden {X}.$ref")),
    ("POST", DEFINITIONS, defined({"x": {**TEXT, "pattern": "(["}}), wrong(f"Invalid {X}.pattern")),
    ("POST", DEFINITIONS, defined({"x": {**ITEMS, "additionalProperties": TEXT}}), wrong(f"Forbidden {X}.additionalProperties")),
    ("POST", DEFINITIONS, defined({"x": {**KEYED, "items": ITEMS}}), wrong(f"Required {X}.x-kubernetes-list-map-keys")),
    ("POST", DEFINITIONS, defined({"x": {**KEYED, "items": ITEMS, "x-kubernetes-list-map-keys": ["k"]}}), wrong(f"Required {X}.items.properties[k].default")),
    ("POST", DEFINITIONS, defined({"x": {**NUMBER, "default": "a"}}), wrong(f"TypeInvalid {X}.default")),
    ("POST", DEFINITIONS, defined({"x": {**ITEMS, "default": {"a": 1}}}), wrong(f"Invalid {X}.default")),
    ("POST", DEFINITIONS, defined(spec={**rules("self.n > 0"), "default": {}}), wrong(f"Invalid {SPEC}.default")),
    ("POST", DEFINITIONS, defined(spec=rules("self.n + 1")), wrong(f"Invalid {RULE}.rule")),
    ("POST", DEFINITIONS, defined(spec=rules("self.n == 'a'")), wrong(f"Invalid {RULE}.rule")),
    ("POST", DEFINITIONS, defined(spec=rules("self.m == 1")), wrong(f"Invalid {RULE}.rule")),
    ("POST", DEFINITIONS, defined(spec=rules("true", fieldPath=".m")), wrong(f"Invalid {RULE}.fieldPath")),
    ("POST", DEFINITIONS, defined(spec=rules("true", message="a\nb")), wrong(f"Invalid {RULE}.message")),
]  # fmt: skip


def asked(client, how, path, body):
    """Asks, and returns code, reason and causes; patches are asked for by their type."""
    if how in {"GET", "POST", "PUT", "DELETE"}:
        code, found = client.call(how, path, body)
    else:
        code, found = client.call("PATCH", path, body, patch=how)
    if found["kind"] != "Status":
        return code, None, None
    causes = (found.get("details") or {}).get("causes") or []
    pairs = sorted(([one["reason"], one.get("field")] for one in causes), key=str)
    return code, found.get("reason"), pairs


@pytest.fixture
def there(client, cluster):
    """Objects of some kinds that are there."""
    for path, item in (
        (CONFIGS, config("there")),
        (PODS, pod("there", schedulerName="nobody")),
        (SERVICES, service("there", clusterIP="127.2.200.1")),
    ):
        code, _, causes = asked(client, "POST", path, item)
        assert code == 201, causes
    yield
    for kind in ("Service", "Secret"):
        for item in cluster.list(kind, "default"):
            cluster.delete(kind, item["metadata"]["name"])


@pytest.mark.parametrize(
    ("how", "path", "body", "answer"), ANSWERS, ids=map(str, range(len(ANSWERS)))
)
def test_answer_is_that_of_an_api_server(client, there, how, path, body, answer):
    code, reason, causes = asked(client, how, path, copy.deepcopy(body))
    assert (code, reason, causes) == answer


def test_continued_list_names_no_version(client, there):
    client.call("POST", CONFIGS, config("two"))
    _, page = client.call("GET", f"{CONFIGS}?limit=1")
    token = page["metadata"]["continue"]
    path = f"{CONFIGS}?limit=1&continue={token}"
    assert asked(client, "GET", path, None) == GOOD
    assert asked(client, "GET", f"{path}&resourceVersion=5", None) == bad()


def test_answer_to_what_has_no_name_has_one(client):
    item = {"metadata": {"generateName": "some-"}}
    code, found = client.call("POST", CONFIGS, item)
    assert (code, len(found["metadata"]["name"])) == (201, 10)


def test_texts_of_secrets_become_their_data(client, there):
    item = {"metadata": {"name": "new"}, "stringData": {"a": "b"}}
    _, found = client.call("POST", SECRETS, item)
    assert (found["data"], found.get("stringData")) == ({"a": "Yg=="}, None)
    assert found["type"] == "Opaque"


@pytest.mark.parametrize(
    ("how", "path", "body"),
    [
        ("GET", "/apis/apps/v1/namespaces/default/deployments", None),
        ("POST", "/apis/batch/v1/namespaces/default/jobs", {}),
        ("GET", f"{CORE}/replicationcontrollers", None),
        ("GET", "/apis/policy/v1/poddisruptionbudgets", None),
        ("POST", f"{PODS}/there/eviction", {}),
        ("POST", f"{PODS}/there/binding", {}),
        ("GET", f"{PODS}/there/exec", None),
        ("GET", f"{PODS}/there/log?follow=true", None),
        ("DELETE", CONFIGS, None),
        ("PUT", CONFIGS, {}),
        ("DELETE", "/api/v1/namespaces/default", None),
        ("DELETE", f"{DEFINITIONS}/widgets.{GROUP}", None),
        ("DELETE", f"{CONFIGS}/there?propagationPolicy=Foreground", None),
        ("DELETE", f"{CONFIGS}/there", {"propagationPolicy": "Orphan"}),
        ("POST", f"{CONFIGS}?dryRun=All", config("new")),
        ("GET", f"{CONFIGS}?resourceVersion=1&resourceVersionMatch=Exact", None),
        ("apply-patch+yaml", f"{WIDGETS}/a?fieldManager=m", widget()),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {}),
        ("GET", "/apis", None),
        ("GET", "/openapi/v2", None),
        ("GET", "/metrics", None),
        ("POST", PODS, pod("new", priorityClassName="high")),
    ],
    ids=str,
)
def test_what_is_not_done_is_said(client, there, how, path, body):
    method, patch = (how, None) if how.isupper() else ("PATCH", how)
    code, found = client.call(method, path, body, patch=patch)
    assert (code, found["kind"]) == (501, "Status")
    assert found["message"].startswith("this double does not do that: ")


def test_kind_that_somebody_else_would_define_is_not_there(client):
    code, found = client.call("GET", "/apis/batch.volcano.sh/v1alpha1/jobs")
    assert (code, found["reason"]) == (404, "NotFound")


def test_body_that_is_no_json_is_not_read(client):
    code, found = client.call(
        "POST", CONFIGS, b"kind: ConfigMap", Content_Type="application/yaml"
    )
    assert (code, found["reason"]) == (501, "NotImplemented")
