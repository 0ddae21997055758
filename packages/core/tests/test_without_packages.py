"""Core alone: what needs another package is one error that names it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drivetrain_core import MissingLibraryError, PluginError, accelerate
from drivetrain_core.services import _lookup
from drivetrain_testing import check_model_layout, check_plan_search


@pytest.fixture
def alone(monkeypatch):
    """No package provides a service."""
    monkeypatch.setattr(_lookup, "find_plugin", lambda group, name: None)


def run(strategy, **settings):
    data = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(2)]
    return accelerate(
        lambda: nn.Linear(3, 1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        data,
        lambda output, batch: nn.functional.mse_loss(output, batch[1]),
        strategy=strategy,
        **settings,
    )


@pytest.mark.parametrize("strategy", ["auto", {"micro_batch": [1, 2]}])
def test_a_search_names_the_package_that_searches(alone, strategy):
    with pytest.raises(MissingLibraryError, match="pip install drivetrain-search"):
        run(strategy)


def test_a_model_without_weights_names_the_package_that_makes_it(alone):
    with pytest.raises(MissingLibraryError, match="pip install drivetrain-parallel"):
        run([], weights="reset")


def test_a_given_strategy_needs_no_other_package(alone):
    accelerated = run([("micro_batch", 2)])
    assert str(accelerated.plan) == "micro_batch(num=2)"


def test_contract_suites_see_that_nobody_is_there(alone):
    with pytest.raises(MissingLibraryError):
        check_plan_search(_lookup.get_service("plan_search"))
    with pytest.raises(MissingLibraryError):
        check_model_layout("drivetrain-core:model_layout")


@pytest.mark.parametrize("answer", [None, (["compile"], None), "plan"])
def test_a_search_that_returns_no_plan_is_named(monkeypatch, answer):
    class Odd:
        def search(self, request):
            return answer

    monkeypatch.setattr("drivetrain_core._accelerate.get_service", lambda _: Odd())
    with pytest.raises(PluginError, match=r"Odd.* returned .*, and no plan"):
        run("auto")


def test_an_error_of_a_provider_says_whose_it_is(distribute):
    code = "def make():\n    raise OSError('oh no')\n"
    distribute(
        "acme", [("anvils", "acme_anvils:make")], module="acme_anvils", code=code
    )
    with pytest.raises(OSError, match="oh no") as caught:
        _lookup.get_service("anvils")
    assert caught.value.__notes__ == [
        "'anvils' is provided by acme 1.0 (acme_anvils:make)"
    ]
