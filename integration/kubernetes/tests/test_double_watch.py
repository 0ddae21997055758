"""The API server of the double, over HTTPS: lists, watches, and what goes wrong."""

from __future__ import annotations

import http.client
import itertools
import json

import pytest
from double_samples import (
    CONFIGS,
    GROUP,
    WIDGETS,
    config,
    widget,
)
from drivetrain_cluster_double import Fault

pytestmark = pytest.mark.extra

MERGE, JSON, APPLY = "merge-patch+json", "json-patch+json", "apply-patch+yaml"


def test_list_in_pages_shows_one_moment(client, cluster):
    for number in range(5):
        client.call("POST", CONFIGS, config(f"c{number}", odd=str(number % 2)))
    names = lambda page: [item["metadata"]["name"] for item in page["items"]]
    _, first = client.call("GET", f"{CONFIGS}?limit=2")
    assert (names(first), first["metadata"]["remainingItemCount"]) == (["c0", "c1"], 3)
    assert "kind" not in first["items"][0]
    client.call("DELETE", f"{CONFIGS}/c3")
    client.call("POST", CONFIGS, config("c9"))
    token = first["metadata"]["continue"]
    _, rest = client.call("GET", f"{CONFIGS}?limit=9&continue={token}")
    assert names(rest) == ["c2", "c3", "c4"]
    assert rest["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}
    _, some = client.call("GET", f"{CONFIGS}?labelSelector=odd%3D1")
    assert names(some) == ["c1"]
    cluster.compact()
    status, error = client.call("GET", f"{CONFIGS}?limit=9&continue={token}")
    assert (status, error["reason"]) == (410, "Expired")


def test_watch_tells_what_is_there_and_what_happens(client):
    client.call("POST", CONFIGS, config("a", app="x"))
    with client.watch(CONFIGS, "labelSelector=app%3Dx") as events:
        take = lambda: (
            (e := next(events)) and (e["type"], e["object"]["metadata"]["name"])
        )
        assert take() == ("ADDED", "a")
        client.call("POST", CONFIGS, config("b"))
        client.call("POST", CONFIGS, config("c", app="x"))
        assert take() == ("ADDED", "c")
        patch = {"metadata": {"labels": {"app": "y"}}}
        client.call("PATCH", f"{CONFIGS}/c", patch, MERGE)
        assert take() == ("DELETED", "c")
        patch["metadata"]["labels"]["app"] = "x"
        client.call("PATCH", f"{CONFIGS}/b", patch, MERGE)
        assert take() == ("ADDED", "b")
        client.call("PATCH", f"{CONFIGS}/b", {"data": {"k": "v"}}, MERGE)
        assert take() == ("MODIFIED", "b")
        client.call("DELETE", f"{CONFIGS}/b")
        assert take() == ("DELETED", "b")


def test_watch_goes_on_from_a_version_and_has_bookmarks(client):
    _, item = client.call("POST", CONFIGS, config("a"))
    at = item["metadata"]["resourceVersion"]
    client.call("POST", CONFIGS, config("b"))
    query = f"resourceVersion={at}&allowWatchBookmarks=true"
    with client.watch(CONFIGS, query) as events:
        assert next(events)["object"]["metadata"]["name"] == "b"
        client.call("POST", WIDGETS, widget())
        client.call("POST", CONFIGS, config("c"))
        assert next(events)["object"]["metadata"]["name"] == "c"
        client.call("DELETE", f"{WIDGETS}/a")
        mark = next(events)
        assert mark["type"] == "BOOKMARK"
        assert set(mark["object"]["metadata"]) == {"resourceVersion"}
    start = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    with client.watch(CONFIGS, f"{start}&allowWatchBookmarks=true") as events:
        there = list(itertools.takewhile(lambda e: e["type"] == "ADDED", events))
        assert [e["object"]["metadata"]["name"] for e in there] == ["a", "b", "c"]


def test_watch_ends_its_first_list_with_a_mark(client):
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    with client.watch(CONFIGS, f"{query}&allowWatchBookmarks=true") as events:
        mark = next(events)
        assert mark["type"] == "BOOKMARK"
        annotations = mark["object"]["metadata"]["annotations"]
        assert annotations == {"k8s.io/initial-events-end": "true"}


def test_watch_from_a_forgotten_version_is_gone(client, cluster):
    _, item = client.call("POST", CONFIGS, config("a"))
    client.call("POST", CONFIGS, config("b"))
    cluster.compact()
    at = item["metadata"]["resourceVersion"]
    with client.watch(CONFIGS) as followed:
        assert [next(followed)["type"] for _ in "ab"] == ["ADDED", "ADDED"]
        # Whoever follows has seen what is forgotten.
        client.call("POST", WIDGETS, widget())
        cluster.compact()
        client.call("POST", CONFIGS, config("c"))
        assert next(followed)["object"]["metadata"]["name"] == "c"
    with client.watch(CONFIGS, f"resourceVersion={at}") as events:
        (only,) = events
    assert (only["type"], only["object"]["code"]) == ("ERROR", 410)
    assert only["object"]["reason"] == "Expired"


def test_watch_ends_when_its_time_is_over_or_it_is_dropped(client, cluster):
    with client.watch(CONFIGS, "timeoutSeconds=0.05") as events:
        assert list(events) == []
    with client.watch(CONFIGS) as events:
        client.call("POST", CONFIGS, config("a"))
        assert next(events)["type"] == "ADDED"
        cluster.drop_watches()
        assert next(events, None) is None


def test_discovery_lists_everything_at_once(client):
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    _, found = client.call("GET", "/apis", accept=accept)
    group = next(one for one in found["items"] if one["metadata"]["name"] == GROUP)
    (resource,) = group["versions"][0]["resources"]
    assert resource["scope"] == "Namespaced"
    parts = {one["subresource"] for one in resource["subresources"]}
    assert parts == {"status", "scale"}
    assert client.call("GET", "/version")[1]["minor"] == "36"
    _, index = client.call("GET", "/openapi/v3")
    assert f"apis/{GROUP}/v1" in index["paths"]


def test_table_has_the_columns_of_the_definition(client):
    client.call("POST", WIDGETS, widget(replicas=3))
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    _, table = client.call("GET", WIDGETS, accept=accept)
    assert [one["name"] for one in table["columnDefinitions"]] == ["Name", "Replicas"]
    assert table["rows"][0]["cells"] == ["a", 3]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (409, "Conflict"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
        (410, "Expired"),
    ],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_fault_answers_before_or_after_the_effect(
    client, cluster, status, reason, when
):
    cluster.faults.add(
        Fault(verb="create", resource="widgets", status=status, when=when)
    )
    line, response = client.open("POST", WIDGETS, widget())
    error = json.loads(response.read())
    assert (response.status, error["reason"]) == (status, reason)
    assert (response.headers["Retry-After"] is not None) == (status in {429, 503})
    line.close()
    assert (cluster.get("Widget", "a") is not None) == (when == "after")


@pytest.mark.parametrize("when", ["before", "after"])
def test_fault_drops_the_connection(client, cluster, when):
    cluster.faults.add(Fault(verb="create", drop=True, when=when))
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        client.call("POST", WIDGETS, widget())
    assert (cluster.get("Widget", "a") is not None) == (when == "after")


def test_fault_breaks_a_watch_after_some_events(client, cluster):
    cluster.faults.add(Fault(verb="watch", status=410, after_events=1))
    for name in ("a", "b"):
        client.call("POST", CONFIGS, config(name))
    with client.watch(CONFIGS) as events:
        found = [(e["type"], e["object"].get("code")) for e in events]
    assert found == [("ADDED", None), ("ERROR", 410)]
    cluster.faults.add(Fault(verb="watch", status=500))
    assert client.call("GET", f"{CONFIGS}?watch=1")[0] == 500


def test_calls_are_counted(client, cluster):
    before = cluster.calls["create", "widgets"]
    client.call("POST", WIDGETS, widget())
    client.call("PATCH", f"{WIDGETS}/a/status", {"status": {}}, MERGE)
    assert cluster.calls["create", "widgets"] == before + 1
    assert cluster.calls["patch", "widgets/status"] >= 1
