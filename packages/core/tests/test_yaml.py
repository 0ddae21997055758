"""The dialect of YAML: what it reads, what it refuses, and that it reads its own."""

from __future__ import annotations

from enum import IntEnum, StrEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core._errors import ClusterSpecError, Code, PlanFormatError
from drivetrain_core._yaml import dump_yaml, load_yaml

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text("abc:#- é", max_size=6), inner)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_round_trip_keeps_values_and_types(value):
    again = load_yaml(dump_yaml(value))
    assert again == value
    assert repr(again) == repr(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: ~", {"a": None}),
        ("a:", {"a": None}),
        ("true", True),
        ("yes", "yes"),
        ("off", "off"),
        ("True", "True"),
        ("010", "010"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("12:30:00", "12:30:00"),
        ("2026-01-01", "2026-01-01"),
        ("1e-3", 0.001),
        ("-.5", -0.5),
        (".inf", float("inf")),
        ("-0", 0),
        ("'1'", "1"),
        ("<<: {a: 1}", {"<<": {"a": 1}}),
        ("[1, [2], {a: b}]", [1, [2], {"a": "b"}]),
        ("{1: a, 2.5: b}", {1: "a", 2.5: "b"}),
    ],
)
def test_load_reads_the_core_schema(text, value):
    loaded = load_yaml(text)
    assert loaded == value
    assert type(loaded) is type(value)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: 2\na: 3", ":3", "the key 'a' stands twice"),
        ("a:\n  x: 1\n  x: 2", ":3", "the key 'x' stands twice"),
        ("1: a\n1.0: b", ":2", "stands twice"),
        ("a: &x 1", ":1", "anchors and aliases"),
        ("a: 1\nb: *x", ":2", "anchors and aliases"),
        ("a: !!python/object:os.system x", ":1", "tag"),
        ("!!binary aGk=", ":1", "tag"),
        ("? [1, 2]\n: 3", ":1", "a key must be a single value"),
        ("a: [1", ":1", ""),
        ("a: 1\n---\nb: 2", ":2", "another document"),
        ("\ta: 1", ":1", ""),
        ("a: 1\n b: 2", ":2", ""),
        ("x\x00", "", "not YAML"),
        ("[" * 5000, "", "nested too deeply"),
        ("1" * 5000, "", "limit"),
    ],
)
def test_load_refuses_with_source_and_line(text, line, problem):
    with pytest.raises(ValueError, match=r"plan\.yaml") as caught:
        load_yaml(text, "plan.yaml")
    message = str(caught.value)
    assert message.startswith(f"plan.yaml{line}")
    assert problem in message
    assert "\n" not in message


def test_load_raises_the_error_of_the_caller():
    with pytest.raises(ClusterSpecError, match=r"c\.yaml:2"):
        load_yaml("a: 1\na: 2", "c.yaml", ClusterSpecError)
    with pytest.raises(PlanFormatError) as caught:
        load_yaml("a: 1\na: 2", "p.yaml", PlanFormatError)
    assert caught.value.code == Code.FORMAT
    assert caught.value.optimization == "p.yaml:2"


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


def test_dump_writes_block_style_in_order():
    text = dump_yaml({"b": 1, "a": [Colour.RED, Level.HIGH, (1, "off")]})
    assert text == "b: 1\na:\n  - red\n  - 3\n  - - 1\n    - 'off'\n"


def test_dump_repeats_what_occurs_twice():
    shared = {"x": 1}
    assert "&" not in dump_yaml([shared, shared])


@pytest.mark.parametrize("value", [{"a": {1, 2}}, {"a": [object()]}, {(1, 2): 3}, b"x"])
def test_dump_refuses_other_types_and_says_where(value):
    with pytest.raises(TypeError, match="which the file cannot hold"):
        dump_yaml(value)
