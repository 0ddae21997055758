"""`strategy="auto"`: searches through `accelerate`, and how they fail."""

from __future__ import annotations

import os
import time

import pytest
import torch
from torch import nn

from drivetrain_core import (
    BaseOptimization,
    DataExhaustedError,
    Phase,
    Plan,
    PlanError,
    ProgramError,
    SearchError,
    Slot,
    register,
    unregister,
)
from drivetrain_testing.programs import adamw, data, mse, run

SMALL = {"seconds": 120, "trials": 3, "trial_seconds": 40}


@pytest.mark.slow
def test_search_finds_and_writes_a_plan(tmp_path):
    accelerated = run(
        "auto",
        optimizer=adamw,
        budget=SMALL,
        allow=["optimizer_impl", "micro_batch"],
        plan_out=tmp_path / "plan.yaml",
    )
    report = accelerated.report
    assert [t.name for t in report.trials] == ["t01", "t02", "t03"]
    assert not any(t.cached for t in report.trials)
    assert all(t.usable for t in report.trials)
    assert report.baseline.choices == ()
    plan = Plan.load(tmp_path / "plan.yaml")
    assert plan.choices == accelerated.plan.choices == report.chosen
    assert plan.made["trials"] == 3
    assert {r.slot for r in plan.why} >= {"plan", "optimizer_impl", "micro_batch"}
    assert plan.fingerprint["model"] == accelerated.context.model.fingerprint
    assert torch.isfinite(accelerated.train_step(next(iter(accelerated.loader))))


@pytest.mark.slow
def test_search_keeps_what_is_required():
    accelerated = run(
        "auto",
        optimizer=adamw,
        budget=SMALL | {"trials": 2},
        allow=[],
        require=[("micro_batch", 2)],
    )
    assert str(accelerated.plan) == "micro_batch(num=2)"
    assert [str(c) for t in accelerated.report.trials for c in t.choices] == [
        "micro_batch(num=2)"
    ]
    assert len(accelerated.report.trials) == 2  # The program as written as well.


@pytest.mark.slow
def test_search_of_an_open_strategy_keeps_its_fixed_part():
    accelerated = run(
        {"micro_batch": 2, "optimizer_impl": ["fused"]},
        optimizer=adamw,
        budget=SMALL,
    )
    names = [[c.name for c in t.choices] for t in accelerated.report.trials]
    assert names == [["micro_batch"], [], ["optimizer_impl", "micro_batch"]]
    assert "micro_batch" in [c.name for c in accelerated.plan.choices]


@pytest.mark.slow
def test_search_ships_lambdas_generators_and_main_classes():
    weights = torch.randn(3, 1)

    class Local(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 1)

        def forward(self, x):
            return self.inner(x) + x @ weights

    accelerated = run(
        "auto",
        model=Local(),
        optimizer=lambda ps: torch.optim.SGD(ps, lr=1e-3),
        batches=(batch for batch in data(6)),
        loss=lambda output, batch: (output - batch[1]).square().mean(),
        budget=SMALL | {"trials": 1},
        allow=["micro_batch"],
    )
    assert len(accelerated.report.trials) == 1
    assert len(list(accelerated.loader)) == 6


def test_search_says_what_cannot_be_shipped():
    class Locked(nn.Linear):
        def __reduce__(self):
            raise TypeError("has a lock")

    with pytest.raises(PlanError, match=r"model cannot be sent.*has a lock"):
        run("auto", model=Locked(3, 1), budget=SMALL)


@pytest.mark.slow
def test_search_raises_the_programs_own_mistake():
    with pytest.raises(ProgramError, match=r"got shape \(8, 1\)"):
        run("auto", loss=lambda output, _: output, budget=SMALL)


@pytest.mark.slow
def test_search_without_time_to_measure_keeps_the_program_as_written(caplog):
    here = os.getpid()

    def slow(output, batch):
        if os.getpid() != here:
            time.sleep(30)
        return mse(output, batch)

    accelerated = run("auto", loss=slow, budget=4)
    said = "the budget of 4 s was too short to measure the program as it is written"
    assert f"{said}, which is the plan" in caplog.text
    assert accelerated.plan.choices == ()
    assert said in accelerated.plan.why[0].because
    assert accelerated.report.stopped == said
    assert accelerated.plan.measured == {}
    # It trains, and all that shows a report shows this one.
    accelerated.train_step(next(iter(accelerated.loader)))
    accelerated.report.table()
    assert accelerated.report.to_dict()["trials"][0]["code"] == "BUDGET"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "limit"),
    [(4, "the budget of 4 s"), ({"trial_seconds": 1}, "the limit of 1 s for a trial")],
)
def test_search_without_time_keeps_what_is_required(caplog, budget, limit):
    here = os.getpid()

    def slow(output, batch):
        if os.getpid() != here:
            time.sleep(30)
        return mse(output, batch)

    accelerated = run(
        "auto", loss=slow, budget=budget, require=[("micro_batch", 2)], cache=False
    )
    assert [c.name for c in accelerated.plan.choices] == ["micro_batch"]
    assert f"{limit} was too short to measure" in caplog.text


@pytest.mark.slow
def test_search_is_not_misled_by_files_of_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "queue.py").write_text("raise SystemError('not this one')")
    monkeypatch.chdir(tmp_path)
    accelerated = run("auto", budget=SMALL | {"trials": 1}, allow=["micro_batch"])
    assert accelerated.report.baseline.usable


@pytest.mark.slow
def test_search_shows_why_the_program_fails():
    def broken(output, batch):
        raise ZeroDivisionError("in my loss")

    with pytest.raises(SearchError, match="in my loss"):
        run("auto", loss=broken, budget=SMALL)


@pytest.mark.slow
def test_search_with_data_that_ends_says_what_to_pass():
    class Once:
        """Yields two batches on its first pass only."""

        def __init__(self):
            self.left = data(2)

        def __iter__(self):
            while self.left:
                yield self.left.pop()

    with pytest.raises(DataExhaustedError, match="iterable that starts again"):
        run("auto", batches=Once(), budget=SMALL)


class Hungry(BaseOptimization):
    """Needs less memory than the program: shrinks what the model allocates."""

    name, slot, phase = "hungry", Slot.ACTIVATION_CHECKPOINT, Phase.RUNTIME

    def apply(self, state, config):
        """Turns the allocation off."""
        state.module.greedy = False


class Greedy(nn.Module):
    """Runs out of memory unless told not to."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 1)
        self.greedy = True

    def forward(self, x):
        if self.greedy:
            torch.empty(1 << 46, dtype=torch.uint8)
        return self.inner(x)


@pytest.mark.slow
def test_baseline_out_of_memory_is_replaced_by_what_fits():
    register(Hungry())
    try:
        accelerated = run("auto", model=Greedy, budget=SMALL, allow=["hungry"])
    finally:
        unregister("hungry")
    assert str(accelerated.plan) == "hungry"
    codes = [trial.code for trial in accelerated.report.trials]
    assert sorted(codes) == ["", "MEMORY"]
    assert accelerated.report.baseline.usable


@pytest.mark.slow
def test_baseline_out_of_memory_without_a_way_out_says_so():
    with pytest.raises(SearchError, match="MEMORY"):
        run("auto", model=Greedy, budget=SMALL, allow=["optimizer_impl"])
