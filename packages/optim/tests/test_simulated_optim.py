"""Optimizers on the simulated accelerator: their reference forms, as on the CPU."""

from __future__ import annotations

import pytest
import torch

from drivetrain_optim import AGD, LAMB, WSAM

pytestmark = pytest.mark.simulated_accelerator


def agd(parameters, **options):
    return AGD(parameters, lr=1e-2, **options)


def lamb(parameters, **options):
    return LAMB(parameters, lr=1e-2, **options)


def wsam(parameters, **options):
    return WSAM(torch.optim.SGD(parameters, lr=1e-2), **options)


def steps(make, device, num=4, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
    ).to(device)
    optimizer = make(model.parameters(), **options)
    x = torch.linspace(-1, 1, 8 * 16).view(8, 16).to(device)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(num):
        optimizer.step(closure)
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("make", [agd, lamb, wsam])
def test_steps_are_those_of_the_cpu(make):
    for found, expected in zip(steps(make, "sim"), steps(make, "cpu"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [agd, lamb])
@pytest.mark.parametrize("foreach", [False, True])
def test_forms_agree_there(make, foreach):
    plain = steps(make, "cpu", foreach=False)
    for found, expected in zip(steps(make, "sim", foreach=foreach), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_kernels_are_refused_there_by_name():
    parameter = torch.nn.Parameter(torch.ones(4, device="sim"))
    with pytest.raises(ValueError, match="no kernels for sim"):
        AGD([parameter], fused=True)
