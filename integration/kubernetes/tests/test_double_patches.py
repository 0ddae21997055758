"""Patches."""

from __future__ import annotations

import copy

import pytest
from drivetrain_cluster_double.errors import StatusError
from drivetrain_cluster_double.patches import (
    json_patch,
    merge_difference,
    merge_patch,
    strategic_patch,
)


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
        ({"op": "add", "path": "/b"}, 422),
        ({"op": "what", "path": "/a"}, 422),
        ({"op": "remove", "path": "a"}, 422),
        ("text", 422),
        (None, 400),
    ],
    ids=str,
)
def test_json_patch_that_cannot_be_done_is_refused(operation, code):
    with pytest.raises(StatusError) as error:
        json_patch({"a": [1]}, [operation] if operation else {"a": 1})
    assert error.value.code == code


def test_strategic_patch_merges_lists_by_their_keys():
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    main = {"name": "main", "image": "x", "env": env}
    there = {"containers": [main, {"name": "side"}], "tolerations": [{"key": "x"}]}
    change = [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]
    patch = {"containers": [{"name": "main", "env": change}], "tolerations": []}
    found = strategic_patch(there, patch)
    assert found["tolerations"] == []
    assert found["containers"][1] == {"name": "side"}
    assert found["containers"][0]["image"] == "x"
    values = {one["name"]: one["value"] for one in found["containers"][0]["env"]}
    assert values == {"A": "1", "B": "3", "C": "4"}


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ({"containers": [{"image": "x"}]}, 400),
        ({"data": {"$patch": "replace"}}, 501),
        ({"$setElementOrder/containers": []}, 501),
    ],
    ids=str,
)
def test_strategic_patch_refuses_what_it_does_not_do(patch, code):
    with pytest.raises(StatusError) as error:
        strategic_patch({}, patch)
    assert error.value.code == code


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"d": 3}, "e": [1]}),
        ({}, {"a": {"b": 1}}),
        ({"a": {"b": 1}}, {"a": 1}),
    ],
    ids=str,
)
def test_merge_difference_makes_one_of_the_other(old, new):
    assert merge_patch(old, merge_difference(old, new)) == new
