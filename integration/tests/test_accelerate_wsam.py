"""`accelerate` puts WSAM around the user's optimizer, or LAMB in its place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drivetrain_core import PlanError, accelerate
from drivetrain_optim import AGD, LAMB, WSAM


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1)
    )


def batches(num_batches=8):
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(16, 4, generator=generator) for _ in range(num_batches)]
    return [(x, x.sum(1, keepdim=True)) for x in inputs]


def loss(output, batch):
    return nn.functional.mse_loss(output, batch[1])


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def trained(strategy, **options):
    accelerated = accelerate(
        model, adamw, batches(), loss, strategy=strategy, device="cpu", **options
    )
    losses = [float(accelerated.train_step(batch)) for batch in accelerated.loader]
    return accelerated, losses


@pytest.mark.parametrize("every_k", [1, 3])
def test_wsam_trains_as_a_loop_of_ones_own(every_k):
    config = {"rho": 0.1, "gamma": 0.8, "every_k": every_k}
    accelerated, losses = trained([("wsam", config)])
    assert isinstance(accelerated.optimizer, WSAM)
    plain = model()
    wsam = WSAM(adamw(plain.parameters()), model=plain, **config)
    expected = []
    for batch in batches():
        wsam.zero_grad()
        first = loss(plain(batch[0]), batch)
        first.backward()
        expected.append(first.item())
        if wsam.needs_second_pass:
            with wsam.perturb():
                loss(plain(batch[0]), batch).backward()
        wsam.step()
    assert losses == expected
    for ours, own in zip(
        accelerated.module.state_dict().values(),
        plain.state_dict().values(),
        strict=True,
    ):
        assert torch.equal(ours, own)  # the statistics of BatchNorm too


def test_wsam_goes_with_the_implementation_of_the_base():
    accelerated, _ = trained(["wsam", ("optimizer_impl", "fused")])
    assert isinstance(accelerated.optimizer.base, torch.optim.AdamW)
    assert accelerated.optimizer.param_groups[0]["fused"] is True


def test_wsam_goes_around_another_optimizer_of_the_plan():
    accelerated, _ = trained(["agd", "wsam"])
    assert isinstance(accelerated.optimizer, WSAM)
    assert isinstance(accelerated.optimizer.base, AGD)


def test_wsam_needs_a_step_that_core_drives():
    with pytest.raises(PlanError, match="two passes") as caught:
        trained(["wsam"], own_loop=True)
    assert caught.value.code == "STEP_NOT_OWNED"


def test_wsam_around_fp32_masters_is_refused():
    with pytest.raises(PlanError, match="fp32 masters"):
        trained(["wsam", ("precision", "bf16_params")])


def test_lamb_takes_over_rates_and_trains():
    accelerated, losses = trained([("lamb", {"lr": 0.05, "preset": "timm"})])
    assert isinstance(accelerated.optimizer, LAMB)
    (group,) = accelerated.optimizer.param_groups
    assert (group["lr"], group["weight_decay"], group["adapt"]) == (
        0.05,
        0.01,
        "decayed",
    )
    assert losses[-1] < losses[0]
