"""Arguments of `accelerate` that are refused before anything is built."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drivetrain_core import Choice, Plan, PlanError, ProgramError, accelerate
from drivetrain_core._arguments import check_limits, read_device

BATCHES = [(torch.randn(4, 2), torch.randn(4, 1)) for _ in range(3)]


def call(**changed):
    fields = {
        "model": lambda: nn.Linear(2, 1),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "data": BATCHES,
        "loss": lambda output, batch: nn.functional.mse_loss(output, batch[1]),
        "progress": False,
    }
    return accelerate(**fields | changed)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"on_error": "ignore"}, "on_error must be one of raise, fallback"),
        ({"ship": "mail"}, "ship must be one of auto, pickle, replay, got 'mail'"),
        ({"loss": 3}, "loss must be a function from .output, batch. to the loss"),
        ({"forward": "model"}, "forward must be a function"),
        ({"scheduler": 1}, "scheduler must be a function from the optimizer"),
        ({"allow": "precision"}, "allow must be a list of names, got 'precision'"),
        ({"deny": [3]}, "deny must be a list of names"),
        ({"require": None}, "require must be a list of names and"),
        ({"require": "precision"}, "require must be a list of names and"),
        ({"require": {"micro_batch": 2}}, "require must be a list of names and"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be a positive number, or None"),
        ({"max_grad_norm": True}, "max_grad_norm must be a positive number, or None"),
        ({"seed": "a"}, "seed must be an integer, got 'a'"),
        ({"cache": None}, "cache must be True, False, or a folder, got None"),
        ({"progress": 3}, "progress must be True, False, or a Progress"),
        ({"data": torch.randn(8, 4)}, "a tensor would give its rows"),
        ({"device": "foo"}, "device must be like 'cpu' or 'cuda:0', got 'foo'"),
        ({"data": [(torch.randn(0, 2), torch.randn(0, 1))]}, "must hold samples"),
    ],
)
def test_bad_argument_is_named(changed, match):
    with pytest.raises(ProgramError, match=match):
        call(**changed)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a device")
def test_device_that_is_not_there_is_named():
    with pytest.raises(ProgramError, match="device 'cuda' cannot be used here"):
        read_device("cuda")


def test_optimizer_with_a_closure_cannot_be_searched():
    with pytest.raises(
        ProgramError, match="needs a closure, which neither a trial of a search"
    ):
        call(optimizer=torch.optim.LBFGS, own_loop=True)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"require": ["precision"]}, "it is required"),
        ({"require": [("micro_batch", 4)]}, "it is required"),
        ({"deny": ["micro_batch"]}, "the strategy holds it, and deny does as well"),
        ({"require": ["precison"]}, "precision"),
    ],
)
def test_given_strategy_is_held_to_what_is_required_and_denied(changed, match):
    with pytest.raises(PlanError, match=match):
        call(strategy=[("micro_batch", 2)], **changed)


def test_given_strategy_that_meets_all_is_applied():
    accelerated = call(
        strategy=[("micro_batch", 2)], require=["micro_batch"], deny=["compile"]
    )
    assert str(accelerated.plan) == "micro_batch(num=2)"


def test_required_options_are_compared_in_full():
    plan = Plan(choices=(Choice("micro_batch", {"num": 2}),))
    check_limits(plan, [("micro_batch", {"num": 2})], [])
    with pytest.raises(PlanError, match="does not hold it"):
        check_limits(plan, [("micro_batch", 3)], [])


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"strategy": {"precision": "auto"}, "deny": ["precision"]}, "asked for, and"),
        ({"require": [("micro_batch", 2)], "deny": ["micro_batch"]}, "asked for, and"),
        (
            {"strategy": {"micro_batch": [2]}, "require": [("micro_batch", 4)]},
            "the strategy offers micro_batch",
        ),
        (
            {"strategy": [("micro_batch", [2]), ("micro_batch", 4)]},
            "the strategy names it twice",
        ),
        ({"strategy": {"micro_batch": []}}, "list of values to search is empty"),
    ],
)
def test_searches_that_contradict_themselves_are_refused(changed, match):
    with pytest.raises(PlanError, match=match):
        call(**changed)
