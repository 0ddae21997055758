"""Strategies with open ends."""

from __future__ import annotations

import pytest

from drivetrain_core import Choice, Plan
from drivetrain_core._partial import read_partial


@pytest.mark.parametrize(
    "strategy",
    [
        "auto",
        "plan.yaml",
        Plan(),
        [],
        ["compile"],
        {"compile": "block", "micro_batch": 2},
        [("precision", {"dtype": "bf16_autocast"})],
        [Choice("compile", {"scope": "block"})],
        7,
    ],
)
def test_strategy_without_open_ends_is_not_partial(strategy):
    assert read_partial(strategy) is None


@pytest.mark.parametrize(
    "strategy",
    [
        {"compile": "block", "precision": "auto"},
        [("compile", "block"), ("precision", "auto")],
        [{"compile": "block"}, {"precision": "auto"}],
    ],
)
def test_forms_of_a_partial_strategy_are_read_alike(strategy):
    found = read_partial(strategy)
    assert dict(found.open) == {"precision": "auto"}
    assert len(found.fixed) == 1


def test_bare_names_of_a_partial_strategy_are_fixed():
    found = read_partial(["compile", ("micro_batch", [2, 4])])
    assert found.fixed == ("compile",)
    assert dict(found.open) == {"micro_batch": [2, 4]}
