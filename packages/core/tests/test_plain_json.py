"""Plain data comes back through JSON as what it was, and nothing else does."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core.services import from_json, to_json

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from([torch.float32, torch.device("cpu"), 1 + 2j]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(plain)
def test_plain_data_comes_back_through_json(value):
    text = json.dumps(to_json(value), allow_nan=False)
    assert from_json(json.loads(text)) == value


def test_plain_data_of_another_kind_is_refused():
    assert math.isnan(from_json(to_json(float("nan"))))
    with pytest.raises(TypeError, match="holds no set"):
        to_json({1, 2})
    with pytest.raises(ValueError, match="not the form"):
        from_json({"$": "module", "v": "os"})


@pytest.mark.parametrize(
    "tag", ["float", "complex", "bytes", "dtype", "device", "size"]
)
@pytest.mark.parametrize("value", [None, {}, [], [[]], ["x", 1], "load", 10**400])
def test_form_that_holds_something_else_is_refused(tag, value):
    said = {"$": "tuple", "v": [{"$": tag, "v": value}]}
    try:
        (found,) = from_json(said)
    except ValueError:
        return
    assert not callable(found)
    assert to_json(found) is not None


def test_forms_nested_too_deep_are_refused():
    value = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(ValueError, match="not the form"):
        from_json({"$": "tuple", "v": [value]})
