"""Core on a real GPU: optimizations keep their contract there, and a program trains."""

from __future__ import annotations

import pytest
import torch

from drivetrain_core import accelerate
from drivetrain_core._registry import find
from drivetrain_core.builtin import BUILTINS
from drivetrain_core.examples import byte_lm
from drivetrain_testing import check_optimization

pytestmark = pytest.mark.gpu

SMALL = byte_lm.ByteLMConfig(num_layers=3, dim=128, num_heads=4, ffn_dim=256)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def run(strategy, **settings):
    text = b"the quick brown fox jumps over the lazy dog; " * 500
    return accelerate(
        lambda: byte_lm.ByteLM(SMALL),
        adamw,
        byte_lm.loader(text, batch_size=16, length=64),
        byte_lm.loss,
        strategy=strategy,
        progress=False,
        **settings,
    )


@pytest.mark.parametrize("name", BUILTINS)
def test_builtin_keeps_the_contract_on_a_gpu(name):
    check_optimization(find(name), device="cuda")


def test_program_trains_on_the_gpu():
    accelerated = run(["precision", ("compile", "block"), "optimizer_impl"])
    assert accelerated.device.type == "cuda"
    losses = [
        accelerated.train_step(batch).item()
        for _ in range(4)
        for batch in accelerated.loader
    ]
    assert losses[-1] < losses[0]
    assert next(accelerated.module.parameters()).is_cuda
    assert next(iter(accelerated.loader))[0].is_cuda
