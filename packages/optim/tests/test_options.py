"""The table of options is that of the class, and its rules hold at the edges."""

import inspect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_optim import AGD, DELTA_PRESETS, HyperparameterError
from drivetrain_optim.checks._options import AGD_OPTIONS, checked


def test_options_have_the_defaults_of_the_signature():
    signature = inspect.signature(AGD).parameters
    expected = {k: p.default for k, p in signature.items() if k != "params"}
    expected["state_dtype"] = str(expected["state_dtype"]).removeprefix("torch.")
    assert {name: rule.default for name, rule in AGD_OPTIONS.items()} == expected
    assert list(AGD_OPTIONS) == list(expected)


@pytest.mark.parametrize(("name", "value"), DELTA_PRESETS.items())
def test_delta_presets_are_numbers(name, value):
    assert checked("AGD", AGD_OPTIONS, {"delta": name}) == {"delta": value}
    assert AGD([torch.zeros(1)], delta=name).defaults["delta"] == value


def test_delta_presets_stand_in_the_message():
    assert all(name in AGD_OPTIONS["delta"].allowed for name in DELTA_PRESETS)


@given(st.floats() | st.integers() | st.booleans() | st.text(max_size=3) | st.none())
def test_numbers_are_taken_exactly_when_allowed(value):
    number = isinstance(value, int | float) and not isinstance(value, bool)
    finite = number and math.isfinite(value)
    allowed = {
        "lr": finite and value >= 0,
        "weight_decay": finite and value >= 0,
        "delta": (finite and value > 0) or value in DELTA_PRESETS,
        "clip": value is None or (finite and value > 0),
    }
    for name, expected in allowed.items():
        try:
            checked("AGD", AGD_OPTIONS, {name: value})
            taken = True
        except HyperparameterError:
            taken = False
        assert taken == expected, name
