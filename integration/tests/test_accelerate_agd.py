"""`accelerate` replaces the user's optimizer by AGD when asked, and only then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drivetrain_core import PlanError, accelerate
from drivetrain_optim import AGD


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))


def batches(num_batches=8):
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(16, 4, generator=generator) for _ in range(num_batches)]
    return [(x, x.sum(1, keepdim=True)) for x in inputs]


def loss(output, batch):
    return nn.functional.mse_loss(output, batch[1])


def two_groups(parameters):
    weights, biases = [], []
    for p in parameters:
        (weights if p.dim() > 1 else biases).append(p)
    groups = [
        {"params": weights, "weight_decay": 0.5},
        {"params": biases, "lr": 0.25, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.125)


def trained(strategy, num_epochs=1, **options):
    accelerated = accelerate(
        model, two_groups, batches(), loss, strategy=strategy, device="cpu", **options
    )
    losses = [
        float(accelerated.train_step(batch))
        for _ in range(num_epochs)
        for batch in accelerated.loader
    ]
    return accelerated, losses


def test_agd_takes_over_rates_and_decays():
    accelerated, _ = trained(["agd"])
    assert isinstance(accelerated.optimizer, AGD)
    groups = accelerated.optimizer.param_groups
    assert [g["lr"] for g in groups] == [0.125, 0.25]
    assert [g["weight_decay"] for g in groups] == [0.5, 0.0]
    assert [len(g["params"]) for g in groups] == [2, 2]


def test_agd_options_of_the_plan_win():
    strategy = [("agd", {"lr": 0.01, "delta": "cnn", "decay": "fixed", "clip": 5.0})]
    accelerated, _ = trained(strategy)
    for group in accelerated.optimizer.param_groups:
        assert (group["lr"], group["delta"]) == (0.01, 1e-8)
        assert (group["decay"], group["clip"]) == ("fixed", 5.0)


def test_agd_trains_as_a_loop_of_ones_own():
    accelerated, losses = trained([("agd", {"lr": 0.01})], num_epochs=10)
    assert losses[-1] < 0.2 * losses[0]
    plain = model()
    groups = two_groups(plain.parameters()).param_groups
    kept = [{k: g[k] for k in ("params", "weight_decay")} for g in groups]
    optimizer = AGD(kept, lr=0.01)
    for batch in batches() * 10:
        optimizer.zero_grad()
        loss(plain(batch[0]), batch).backward()
        optimizer.step()
    for ours, own in zip(
        accelerated.module.parameters(), plain.parameters(), strict=True
    ):
        assert torch.equal(ours, own)


def test_agd_plan_is_written_and_applied_again(tmp_path):
    path = tmp_path / "plan.yaml"
    first, _ = trained([("agd", {"delta": 1e-8})], plan_out=path)
    again, _ = trained(path)
    assert again.plan.choices == first.plan.choices
    assert again.optimizer.param_groups[0]["delta"] == 1e-8
    for one, other in zip(
        first.module.parameters(), again.module.parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_agd_with_another_implementation_of_the_users_optimizer_is_refused():
    with pytest.raises(PlanError) as caught:
        trained(["agd", ("optimizer_impl", "foreach")])
    assert caught.value.code == "CONFLICT"


def searched(**options):
    """Returns the plan and the names of all that a search of agd alone tried."""
    budget = {"seconds": 300, "trials": 2}
    accelerated, _ = trained(
        "auto", allow={"agd"}, budget=budget, progress=False, **options
    )
    trials = accelerated.report.trials
    return accelerated.plan, {c.name for trial in trials for c in trial.choices}


@pytest.mark.slow
def test_search_never_proposes_agd_unasked():
    plan, tried = searched()
    assert "agd" not in tried
    assert "agd" not in {choice.name for choice in plan.choices}
    (because,) = [r.code for r in plan.rejected if r.plan.startswith("agd")]
    assert because == "ALGORITHM"


@pytest.mark.slow
def test_search_proposes_agd_when_the_algorithm_may_change():
    plan, tried = searched(changes_algorithm=True)
    # A busy machine may have timed it so that it is not worth a trial.
    because = {r.code for r in plan.rejected if r.plan.startswith("agd")}
    assert "agd" in tried or because == {"SLOWER"}, plan.rejected
