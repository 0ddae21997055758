"""Patches, and server-side apply."""

from __future__ import annotations

import copy

import pytest
from drivetrain_cluster_double import ownership
from drivetrain_cluster_double.apply import apply
from drivetrain_cluster_double.errors import StatusError
from drivetrain_cluster_double.ownership import Owner
from drivetrain_cluster_double.patch import json_patch, merge_patch
from drivetrain_cluster_double.shapes import POD
from drivetrain_cluster_double.strategic import strategic_patch


# The appendix of RFC 7396.
@pytest.mark.parametrize(
    ("value", "patch", "found"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
    ids=str,
)
def test_merge_patch_follows_its_rfc(value, patch, found):
    before = copy.deepcopy(value)
    assert merge_patch(value, patch) == found
    assert value == before


@pytest.mark.parametrize(
    ("operation", "found"),
    [
        ({"op": "add", "path": "/b", "value": 1}, {"a": [1, 2], "m~/": 3, "b": 1}),
        ({"op": "add", "path": "/a/-", "value": 3}, {"a": [1, 2, 3], "m~/": 3}),
        ({"op": "add", "path": "/a/0", "value": 0}, {"a": [0, 1, 2], "m~/": 3}),
        ({"op": "replace", "path": "/m~0~1", "value": 4}, {"a": [1, 2], "m~/": 4}),
        ({"op": "remove", "path": "/a/0"}, {"a": [2], "m~/": 3}),
        ({"op": "move", "from": "/a", "path": "/c"}, {"c": [1, 2], "m~/": 3}),
        ({"op": "copy", "from": "/a/1", "path": "/a/0"}, {"a": [2, 1, 2], "m~/": 3}),
        ({"op": "test", "path": "/a/0", "value": 1}, {"a": [1, 2], "m~/": 3}),
        ({"op": "replace", "path": "", "value": 1}, 1),
    ],
    ids=str,
)
def test_json_patch_does_what_it_says(operation, found):
    value = {"a": [1, 2], "m~/": 3}
    assert json_patch(value, [operation]) == found
    assert value == {"a": [1, 2], "m~/": 3}


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ({"op": "test", "path": "/a/0", "value": 9}, 422),
        ({"op": "remove", "path": "/b"}, 422),
        ({"op": "replace", "path": "/b", "value": 1}, 422),
        ({"op": "add", "path": "/b/c", "value": 1}, 422),
        ({"op": "add", "path": "/a/7", "value": 1}, 422),
        ({"op": "add", "path": "/b"}, 400),
        ({"op": "what", "path": "/a"}, 400),
        ({"op": "remove", "path": "a"}, 400),
        ("text", 400),
    ],
    ids=str,
)
def test_json_patch_that_cannot_be_done_is_refused(operation, code):
    with pytest.raises(StatusError) as error:
        json_patch({"a": [1]}, [operation])
    assert error.value.code == code


def pod(**spec):
    return {"metadata": {"name": "p"}, "spec": spec}


def test_strategic_patch_merges_lists_by_their_keys():
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    there = pod(
        containers=[{"name": "main", "image": "x", "env": env}, {"name": "side"}]
    )
    change = [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]
    patch = {"spec": {"containers": [{"name": "main", "env": change}]}}
    main, side = strategic_patch(there, patch, POD)["spec"]["containers"]
    assert side == {"name": "side"}
    assert main["image"] == "x"
    assert {one["name"]: one["value"] for one in main["env"]} == {
        "A": "1",
        "B": "3",
        "C": "4",
    }


def test_strategic_patch_understands_its_orders():
    there = pod(
        containers=[{"name": "a"}, {"name": "b"}],
        tolerations=[{"key": "x"}],
        nodeSelector={"k": "v", "l": "w"},
    )
    there["metadata"]["finalizers"] = ["one/a", "two/b"]
    patch = {
        "metadata": {
            "finalizers": ["three/c"],
            "$deleteFromPrimitiveList/finalizers": ["one/a"],
        },
        "spec": {
            "containers": [{"name": "a", "$patch": "delete"}, {"name": "c"}],
            "$setElementOrder/containers": [{"name": "b"}, {"name": "c"}],
            "tolerations": [{"key": "y"}],
            "nodeSelector": {"$patch": "replace", "m": "n"},
        },
    }
    found = strategic_patch(there, patch, POD)
    assert found["spec"] == {
        "containers": [{"name": "b"}, {"name": "c"}],
        "tolerations": [{"key": "y"}],
        "nodeSelector": {"m": "n"},
    }
    assert sorted(found["metadata"]["finalizers"]) == ["three/c", "two/b"]


def test_strategic_patch_refuses_an_element_without_its_key():
    with pytest.raises(StatusError, match="name"):
        strategic_patch(
            pod(containers=[]), {"spec": {"containers": [{"image": "x"}]}}, POD
        )


SCHEMA = {
    "properties": {
        "spec": {
            "properties": {
                "steps": {
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                }
            }
        }
    }
}


class Live:
    """An object to which managers apply what they want."""

    def __init__(self):
        self.item, self.managers = {"metadata": {"name": "a"}}, ()

    def apply(self, who, is_forced=False, **spec):
        self.item, self.managers = apply(
            self.item,
            {"metadata": {"name": "a"}, "spec": spec},
            self.managers,
            Owner(who, "Apply"),
            schema=SCHEMA,
            api_version="v1",
            time="2026",
            is_forced=is_forced,
        )

    def update(self, who, **spec):
        item = {**self.item, "spec": {**self.item["spec"], **spec}}
        change = ownership.difference(self.item, item, SCHEMA)
        self.managers = ownership.note_change(
            self.managers, Owner(who), change, api_version="v1", time="2026"
        )
        self.item = item

    def fields(self, who):
        found = [one.fields for one in self.managers if one.owner.name == who]
        return sorted(ownership.paths(found[0])) if found else []


def test_apply_keeps_what_others_own_and_removes_what_is_wanted_no_more():
    live = Live()
    live.apply("one", a=1, b=2)
    live.apply("two", b=2, c=3)
    live.apply("one", a=1)
    assert live.item["spec"] == {"a": 1, "b": 2, "c": 3}
    live.apply("two", c=3)
    assert live.item["spec"] == {"a": 1, "c": 3}
    assert live.fields("one") == [".spec.a"]


def test_apply_conflicts_with_whoever_set_the_field():
    live = Live()
    live.apply("one", replicas=1)
    live.update("scaler", replicas=3)
    assert live.fields("one") == []
    with pytest.raises(StatusError) as error:
        live.apply("one", replicas=1)
    assert error.value.code == 409
    (cause,) = error.value.details["causes"]
    assert cause["field"] == ".spec.replicas"
    assert cause["reason"] == "FieldManagerConflict"
    assert '"scaler"' in cause["message"]
    live.apply("one", is_forced=True, replicas=1)
    assert live.item["spec"] == {"replicas": 1}
    assert live.fields("scaler") == []
    # The same value is no conflict: both own it then.
    live.apply("two", replicas=1)
    assert live.fields("one") == live.fields("two") == [".spec.replicas"]


def test_apply_merges_lists_by_their_keys():
    live = Live()
    live.apply("one", steps=[{"name": "a", "size": 1}, {"name": "b"}])
    live.apply("two", steps=[{"name": "c", "size": 3}])
    assert [one["name"] for one in live.item["spec"]["steps"]] == ["a", "b", "c"]
    live.apply("one", steps=[{"name": "b"}])
    assert [one["name"] for one in live.item["spec"]["steps"]] == ["b", "c"]
    with pytest.raises(StatusError, match=r'\.spec\.steps\[name="c"\]\.size'):
        live.apply("one", steps=[{"name": "c", "size": 4}])


def test_apply_of_the_same_again_changes_nothing():
    live = Live()
    live.apply("one", a={"b": 1}, steps=[{"name": "a"}])
    before = live.item, live.managers
    live.apply("one", a={"b": 1}, steps=[{"name": "a"}])
    assert (live.item, live.managers) == before
