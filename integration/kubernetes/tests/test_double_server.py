"""The API server of the double, over HTTPS: versions, writes, deletions, roles."""

from __future__ import annotations

import json

import pytest
from double_samples import (
    CONFIGS,
    GROUP,
    PODS,
    WIDGETS,
    RawClient,
    config,
    pod,
    widget,
)

pytestmark = pytest.mark.extra

MERGE, JSON, STRATEGIC = (
    f"{name}-patch+json" for name in ("merge", "json", "strategic-merge")
)


def test_object_gets_what_the_server_gives_it(client):
    status, item = client.call("POST", WIDGETS, {**widget(), "status": {"replicas": 9}})
    metadata = item["metadata"]
    assert status == 201
    assert {"uid", "creationTimestamp", "resourceVersion"} <= set(metadata)
    assert (metadata["generation"], metadata["namespace"]) == (1, "default")
    assert item["spec"] == {"replicas": 1, "maxReplicas": 8, "mode": "Wait"}
    assert "status" not in item


def test_status_and_spec_are_changed_apart(client):
    client.call("POST", WIDGETS, widget())
    both = {"spec": {"replicas": 2}, "status": {"seen": "x"}}
    _, item = client.call("PATCH", f"{WIDGETS}/a", both, MERGE)
    assert (item["spec"]["replicas"], item.get("status")) == (2, None)
    assert item["metadata"]["generation"] == 2
    both["spec"]["replicas"] = 3
    _, item = client.call("PATCH", f"{WIDGETS}/a/status", both, MERGE)
    assert (item["spec"]["replicas"], item["status"]) == (2, {"seen": "x"})
    assert item["metadata"]["generation"] == 2
    before = item["metadata"]["resourceVersion"]
    _, item = client.call("PATCH", f"{WIDGETS}/a/status", both, MERGE)
    assert item["metadata"]["resourceVersion"] == before


def test_update_of_an_old_version_conflicts(client):
    _, item = client.call("POST", WIDGETS, widget())
    item["spec"]["replicas"] = 2
    status, newer = client.call("PUT", f"{WIDGETS}/a", item)
    assert (status, newer["spec"]["replicas"]) == (200, 2)
    status, error = client.call("PUT", f"{WIDGETS}/a", item)
    assert (status, error["reason"], error["kind"]) == (409, "Conflict", "Status")
    assert "please apply your changes to the latest version" in error["message"]
    status, error = client.call("PUT", f"{WIDGETS}/a", widget())
    assert (status, error["details"]["causes"][0]["field"]) == (
        422,
        "metadata.resourceVersion",
    )
    patch = {"metadata": {"resourceVersion": item["metadata"]["resourceVersion"]}}
    assert client.call("PATCH", f"{WIDGETS}/a", patch, MERGE)[0] == 409
    patch = {"metadata": {"uid": "other"}}
    assert client.call("PATCH", f"{WIDGETS}/a", patch, MERGE)[0] == 422
    newer["metadata"]["uid"] = "other"
    assert client.call("PUT", f"{WIDGETS}/a", newer)[0] == 409


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "reason"),
    [
        ("GET", f"{WIDGETS}/none", None, 404, "NotFound"),
        ("GET", "/apis/none.io/v1/things", None, 404, "NotFound"),
        ("POST", WIDGETS, widget("a"), 409, "AlreadyExists"),
        ("POST", WIDGETS, widget("A_"), 422, "Invalid"),
        ("POST", WIDGETS, widget("b", replicas=-1), 422, "Invalid"),
        ("POST", WIDGETS, widget("b", replicas=9), 422, "Invalid"),
        ("POST", WIDGETS, {**widget("b"), "kind": "Other"}, 400, "BadRequest"),
        ("POST", WIDGETS, b"{", 400, "BadRequest"),
        ("POST", WIDGETS, [1], 400, "BadRequest"),
        ("POST", WIDGETS.replace("default", "none"), widget("b"), 404, "NotFound"),
        ("POST", f"/apis/{GROUP}/v1/widgets", widget("b"), 404, "NotFound"),
        ("POST", PODS, pod("b", containers=[]), 422, "Invalid"),
        ("POST", PODS, pod("b", serviceAccountName="none"), 403, "Forbidden"),
        ("GET", f"{PODS}?fieldSelector=spec.what=1", None, 400, "BadRequest"),
        ("GET", f"{PODS}?labelSelector=a=b=c", None, 400, "BadRequest"),
        ("GET", f"{PODS}?resourceVersion=x", None, 400, "BadRequest"),
        ("GET", f"{PODS}?continue=x", None, 400, "BadRequest"),
        ("GET", f"{PODS}?resourceVersion=999999", None, 504, "Timeout"),
        ("PUT", f"{WIDGETS}/b", widget("a"), 400, "BadRequest"),
        (
            "POST",
            f"{WIDGETS}?fieldValidation=Strict",
            widget("b", x=1),
            400,
            "BadRequest",
        ),
    ],
)
def test_refusals_are_those_of_kubernetes(client, method, path, body, code, reason):
    client.call("POST", WIDGETS, widget("a"))
    status, error = client.call(method, path, body)
    assert (status, error["code"], error["reason"]) == (code, code, reason)
    assert (error["kind"], error["status"]) == ("Status", "Failure")


def test_bodies_that_make_no_sense_are_refused(client):
    client.call("POST", WIDGETS, widget())
    client.call("POST", PODS, pod())
    for junk in (None, 0, "x", [], [1], {"": ""}):
        calls = [("POST", path, {**pod(), "spec": junk}) for path in (PODS, WIDGETS)]
        calls += [("PUT", f"{PODS}/p", {**pod(), "metadata": junk})]
        calls += [("PUT", f"{WIDGETS}/a/scale", {"spec": junk}), ("POST", PODS, junk)]
        calls += [("DELETE", f"{PODS}/p", {"gracePeriodSeconds": junk or "x"})]
        found = [client.call(*call)[0] for call in calls]
        labels = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"labels": {"a": junk or 1}},
        }
        path = f"{PODS}/p?fieldManager=m"
        found += [
            client.call("PATCH", path, labels, patch)[0] for patch in (MERGE, STRATEGIC)
        ]
        patch = [{"op": "add", "path": junk, "value": 1}]
        found += [client.call("PATCH", path, patch, JSON)[0]]
        assert {status for status in found if not 400 <= status < 500} <= {200, 201}
    assert client.call("GET", f"{WIDGETS}/a")[0] == 200


def test_refusal_names_every_field(client):
    _, error = client.call("POST", WIDGETS, widget(replicas=-1, mode="x"))
    fields = [cause["field"] for cause in error["details"]["causes"]]
    assert sorted(fields) == ["spec.mode", "spec.replicas"]
    _, error = client.call("POST", WIDGETS, widget(replicas=9))
    assert error["message"].endswith("replicas exceed maxReplicas")
    client.call("POST", WIDGETS, widget())
    patch = {"spec": {"mode": "Resize"}}
    status, error = client.call("PATCH", f"{WIDGETS}/a", patch, MERGE)
    assert (status, "mode never changes" in error["message"]) == (422, True)


def test_unknown_fields_are_pruned_and_told_if_asked(client):
    path = f"{WIDGETS}?fieldValidation=Warn"
    line, response = client.open("POST", path, widget(other=1))
    assert response.headers.get_all("Warning") == [
        '299 - "unknown field \\"spec.other\\""'
    ]
    assert "other" not in json.loads(response.read())["spec"]
    line.close()


def test_patches_of_each_kind(client):
    client.call("POST", PODS, pod())
    operations = [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]
    assert client.call("PATCH", f"{PODS}/p", operations, JSON)[1]["metadata"]["labels"]
    change = {"spec": {"containers": [{"name": "main", "image": "new"}]}}
    _, item = client.call("PATCH", f"{PODS}/p", change, STRATEGIC)
    assert item["spec"]["containers"][0]["image"] == "new"
    assert item["spec"]["containers"][0]["command"] == ["sleep", "100"]
    status, error = client.call(
        "PATCH", f"{PODS}/p", {"spec": {"hostname": "x"}}, MERGE
    )
    assert (status, error["details"]["causes"][0]["field"]) == (422, "spec")
    client.call("POST", WIDGETS, widget())
    assert client.call("PATCH", f"{WIDGETS}/a", {}, STRATEGIC)[0] == 415


def test_name_is_generated(client):
    item = widget()
    item["metadata"] = {"generateName": "w-"}
    names = {
        client.call("POST", WIDGETS, item)[1]["metadata"]["name"] for _ in range(5)
    }
    assert len(names) == 5
    assert all(name.startswith("w-") and len(name) == 7 for name in names)


def test_finalizer_keeps_an_object_until_it_is_taken_off(client, cluster):
    item = widget()
    item["metadata"]["finalizers"] = ["test.dev/mine"]
    client.call("POST", WIDGETS, item)
    _, left = client.call("DELETE", f"{WIDGETS}/a")
    assert left["metadata"]["deletionTimestamp"]
    patch = {"metadata": {"finalizers": ["test.dev/mine", "test.dev/new"]}}
    status, error = client.call("PATCH", f"{WIDGETS}/a", patch, MERGE)
    assert (status, "no new finalizers" in error["message"]) == (422, True)
    client.call("PATCH", f"{WIDGETS}/a", {"metadata": {"finalizers": None}}, MERGE)
    assert cluster.get("Widget", "a") is None
    client.call("POST", WIDGETS, widget())
    status, done = client.call("DELETE", f"{WIDGETS}/a")
    assert (status, done["status"], done["details"]["name"]) == (200, "Success", "a")


def test_deletion_may_be_meant_for_one_version(client):
    client.call("POST", WIDGETS, widget())
    body = {"preconditions": {"uid": "other"}}
    assert client.call("DELETE", f"{WIDGETS}/a", body)[0] == 409
    body = {"preconditions": {"resourceVersion": "1"}}
    assert client.call("DELETE", f"{WIDGETS}/a", body)[0] == 409


def owned(name, owner, *, is_blocking=True):
    item = config(name)
    item["metadata"]["ownerReferences"] = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": is_blocking,
        }
    ]
    return item


def test_owned_objects_follow_their_owner(client, cluster):
    _, owner = client.call("POST", WIDGETS, widget())
    _, other = client.call("POST", WIDGETS, widget("b"))
    first = owned("first", owner)
    first["metadata"]["finalizers"] = ["test.dev/slow"]
    _, first = client.call("POST", CONFIGS, first)
    client.call("POST", CONFIGS, owned("second", first))
    both = owned("third", owner)
    both["metadata"]["ownerReferences"] += owned("x", other)["metadata"][
        "ownerReferences"
    ]
    client.call("POST", CONFIGS, both)
    client.call("DELETE", f"{WIDGETS}/a", {"propagationPolicy": "Background"})
    metadata = lambda name: cluster.get("ConfigMap", name)["metadata"]
    cluster.wait_for(lambda: metadata("first").get("deletionTimestamp"))
    assert cluster.get("Widget", "a") is None
    cluster.wait_for(lambda: len(metadata("third")["ownerReferences"]) == 1)
    client.call("PATCH", f"{CONFIGS}/first", {"metadata": {"finalizers": None}}, MERGE)
    cluster.wait_for(lambda: len(cluster.list("ConfigMap", "default")) == 1)


def test_object_of_an_owner_that_never_was_is_collected(client, cluster):
    nobody = {**widget("ghost"), "metadata": {"name": "ghost", "uid": "none"}}
    client.call("POST", CONFIGS, owned("a", nobody))
    cluster.wait_for(lambda: cluster.get("ConfigMap", "a") is None)


def test_scale_is_a_part_of_its_own(client):
    client.call("POST", WIDGETS, widget())
    status = {"status": {"replicas": 1, "selector": "app=a"}}
    client.call("PATCH", f"{WIDGETS}/a/status", status, MERGE)
    _, scale = client.call("GET", f"{WIDGETS}/a/scale")
    assert (scale["kind"], scale["spec"]) == ("Scale", {"replicas": 1})
    assert scale["status"] == {"replicas": 1, "selector": "app=a"}
    scale["spec"]["replicas"] = 4
    assert client.call("PUT", f"{WIDGETS}/a/scale", scale)[0] == 200
    assert client.call("PUT", f"{WIDGETS}/a/scale", scale)[0] == 409
    patch = {"spec": {"replicas": 99}}
    status, error = client.call("PATCH", f"{WIDGETS}/a/scale", patch, MERGE)
    assert (status, "exceed" in error["message"]) == (422, True)
    _, item = client.call("GET", f"{WIDGETS}/a")
    assert (item["spec"]["replicas"], item["metadata"]["generation"]) == (4, 2)


def test_events_are_the_same_in_both_groups(client):
    about = {"kind": "Widget", "name": "a", "namespace": "default", "uid": "u"}
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "regarding": about,
        "reason": "Scaled",
        "note": "to 3",
        "type": "Normal",
        "action": "Scale",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "test.dev/c",
        "reportingInstance": "i",
    }
    path = "namespaces/default/events"
    assert client.call("POST", f"/apis/events.k8s.io/v1/{path}", event)[0] == 201
    query = "fieldSelector=involvedObject.name%3Da"
    _, found = client.call("GET", f"/api/v1/{path}?{query}")
    assert [one["message"] for one in found["items"]] == ["to 3"]
    _, found = client.call("GET", f"/apis/events.k8s.io/v1/{path}/e")
    assert (found["note"], found["regarding"]["uid"]) == ("to 3", "u")


def test_caller_without_the_token_is_nobody(cluster):
    client = RawClient(cluster, token="wrong")
    assert client.call("GET", PODS)[1]["reason"] == "Unauthorized"
    account = RawClient(cluster, cluster.service_account_token("default", "once"))
    assert account.call("GET", PODS)[0] == 403


def test_roles_say_who_may_do_what(cluster, client):
    worker = RawClient(cluster, cluster.service_account_token("default", "worker"))
    status, error = worker.call("GET", WIDGETS)
    assert (status, error["reason"]) == (403, "Forbidden")
    assert 'cannot list resource "widgets"' in error["message"]
    group = "rbac.authorization.k8s.io"
    rule = {"apiGroups": [GROUP], "resources": ["widgets"], "verbs": ["list"]}
    role = {
        "apiVersion": f"{group}/v1",
        "kind": "Role",
        "metadata": {"name": "r", "namespace": "default"},
        "rules": [rule],
    }
    subject = {"kind": "ServiceAccount", "name": "worker", "namespace": "default"}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "b", "namespace": "default"},
        "subjects": [subject],
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "r"},
    }
    cluster.apply([role, binding])
    assert worker.call("GET", WIDGETS)[0] == 200
    assert worker.call("POST", WIDGETS, widget())[0] == 403
    assert worker.call("GET", f"/apis/{GROUP}/v1/widgets")[0] == 403
    assert client.call("POST", WIDGETS, widget())[0] == 201
