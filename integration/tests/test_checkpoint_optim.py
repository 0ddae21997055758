"""Core's checkpointer saves and restores what the optimizers keep, to the bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from drivetrain_core.services import DcpCheckpointer
from drivetrain_optim import AGD, LAMB, WSAM

MAKERS = {
    "agd": lambda params: AGD(params, lr=0.01, amsgrad=True),
    "agd-master": lambda params: AGD(params, lr=0.01, master_weights=True),
    "lamb": lambda params: LAMB.timm(params, lr=0.01, trust_clip=(0.1, 2.0)),
    "wsam": lambda params: WSAM(AGD(params, lr=0.01), every_k=2),
}


def build(name):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if "master" in name else torch.float32
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
    return model, MAKERS[name](model.parameters())


def train(model, optimizer, steps):
    dtype = next(model.parameters()).dtype
    for step in steps:
        torch.manual_seed(step)
        x = torch.randn(16, 4).to(dtype)

        def closure(x=x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


@pytest.mark.parametrize("name", MAKERS)
def test_training_that_resumes_continues_with_the_same_bits(name, tmp_path):
    whole = build(name)
    train(*whole, range(5))
    checkpointer = DcpCheckpointer(tmp_path)
    state = {"model": whole[0], "optimizer": whole[1]}
    checkpointer.save(5, state).wait()
    resumed = build(name)
    into = {"model": resumed[0], "optimizer": resumed[1]}
    assert checkpointer.restore(into) == 5
    before = copy.deepcopy(list(whole[0].parameters()))
    train(*whole, range(5, 10))
    train(*resumed, range(5, 10))
    for old, one, other in zip(
        before, whole[0].parameters(), resumed[0].parameters(), strict=True
    ):
        assert torch.equal(one, other)
        assert not torch.equal(old, one)
