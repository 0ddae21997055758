"""Open values of a strategy stand for candidates."""

from __future__ import annotations

import pytest

from drivetrain_core import PlanError
from drivetrain_search.candidates import candidates_of


def test_options_may_be_left_open_one_by_one(context):
    found = candidates_of(
        "data_loading", {"workers": [0, 1], "prefetch_factor": (2, 4)}, context
    )
    assert {(c.config["workers"], c.config["prefetch_factor"]) for c in found} == {
        (0, 2),
        (0, 4),
        (1, 2),
        (1, 4),
    }
    assert {c.config["pin_memory"] for c in found} == {False}


def test_auto_option_stands_for_its_choices(context):
    found = candidates_of("activation_checkpoint", {"mode": "auto", "k": 3}, context)
    assert [c.config["mode"] for c in found] == ["selective", "every_k", "full"]


def test_auto_stands_for_what_the_optimization_proposes(context):
    found = candidates_of("precision", "auto", context)
    assert [c.config["dtype"] for c in found] == ["bf16_autocast", "bf16_params"]


def test_list_keeps_order_and_drops_repeats(context):
    found = candidates_of("micro_batch", [4, {"num": 2}, 4], context)
    assert [c.config["num"] for c in found] == [4, 2]


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("micro_batch", [], "list of values to search is empty"),
        ("micro_batch", [0], "must be at least 1"),
        ("micro_batch", {"numb": [1]}, "unknown option 'numb'"),
        ("micro_bach", "auto", "micro_batch"),
        ("cpu_threads", {"num": []}, "list of values to search is empty"),
    ],
)
def test_bad_open_values_are_named(context, name, value, match):
    with pytest.raises(PlanError, match=match):
        candidates_of(name, value, context)
