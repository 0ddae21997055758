"""Search under several ranks: one decides, all apply."""

from __future__ import annotations

import json
import os

import pytest
import torch
from torch import nn

from drivetrain_core import PlanError, accelerate
from drivetrain_testing import run_ranks
from drivetrain_testing.programs import Blocks, loader


def searched():
    accelerated = accelerate(
        Blocks,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        loader("loader"),
        lambda output, batch: nn.functional.mse_loss(output, batch[1]),
        budget={"seconds": 150, "trials": 3, "trial_seconds": 60},
        allow=["ddp", "fsdp"],
        progress=False,
    )
    report = accelerated.report
    trials = [] if report is None else [t.to_dict() for t in report.trials]
    loss = accelerated.train_step(next(iter(accelerated.loader)))
    return json.dumps(accelerated.plan.to_dict()), trials, bool(torch.isfinite(loss))


@pytest.mark.slow
def test_search_under_ranks_decides_once_and_applies_everywhere():
    (plan, trials, fine), (other, none, fine_too) = run_ranks(
        searched, 2, timeout_s=240.0
    )
    assert plan == other
    assert none == []
    assert fine
    assert fine_too
    assert [t["code"] for t in trials] == ["", "", ""]
    assert [list(t["plan"][0]) for t in trials] == [["ddp"], ["fsdp"], ["fsdp"]]


class Placed(Blocks):
    """Leaves a parameter unused, and wants the environment of its own rank."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        rank = torch.distributed.get_rank()
        if (os.environ["RANK"], os.environ["LOCAL_RANK"]) != (str(rank), str(rank)):
            raise RuntimeError("this is the environment of another rank")
        return super().forward(x)


def searched_placed():
    accelerated = accelerate(
        Placed,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        loader("list"),
        lambda output, batch: nn.functional.mse_loss(output, batch[1]),
        budget={"seconds": 150, "trials": 1, "trial_seconds": 60},
        allow=["ddp"],
        progress=False,
    )
    report = accelerated.report
    codes = [] if report is None else [t.code for t in report.trials]
    return str(accelerated.plan), codes


@pytest.mark.faults
def test_search_allows_unused_parameters_when_ddp_asks_for_it():
    (plan, codes), (other, _) = run_ranks(searched_placed, 2, timeout_s=240.0)
    assert plan == other
    assert "find_unused_parameters=True" in plan
    assert codes == ["", "ERROR"]


def clipped():
    torch.manual_seed(0)
    model = Blocks()
    next(model.parameters()).register_hook(lambda gradient: gradient.clamp(-50.0, 50.0))
    try:
        accelerate(
            model,
            lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
            loader("loader"),
            lambda output, batch: nn.functional.mse_loss(output, batch[1]),
            budget={"seconds": 60, "trials": 2},
            cache=False,
            progress=False,
        )
    except PlanError as error:
        return str(error)
    return ""


def test_a_hook_that_would_clip_each_ranks_gradient_is_refused_before_a_search():
    for text in run_ranks(clipped, 2):
        assert "does not grow with the loss" in text
