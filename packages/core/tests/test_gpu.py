"""Core on a real GPU: optimizations keep their contract there, and a program trains."""

from __future__ import annotations

import pytest

from drivetrain_core._registry import find
from drivetrain_core.builtin import BUILTINS
from drivetrain_testing import check_optimization
from drivetrain_testing.programs import run_bytes

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", BUILTINS)
def test_builtin_keeps_the_contract_on_a_gpu(name):
    check_optimization(find(name), device="cuda")


def test_program_trains_on_the_gpu():
    accelerated = run_bytes(["precision", ("compile", "block"), "optimizer_impl"])
    assert accelerated.device.type == "cuda"
    losses = [
        accelerated.train_step(batch).item()
        for _ in range(4)
        for batch in accelerated.loader
    ]
    assert losses[-1] < losses[0]
    assert next(accelerated.module.parameters()).is_cuda
    assert next(iter(accelerated.loader))[0].is_cuda
