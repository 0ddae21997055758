"""The example keeps core's contract, with the foreign library and without."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import torch
from torch import nn

from drivetrain_core import PlanError, accelerate
from drivetrain_core.cli import main
from drivetrain_testing import check_optimization

# `nox -s tests` installs both beside the packages.
adamw_8bit = pytest.importorskip("adamw_8bit")
bitsandbytes = pytest.importorskip("bitsandbytes")


def trained(strategy, num_steps=0):
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(16, 64, generator=generator) for _ in range(4)]
    accelerated = accelerate(
        lambda: nn.Linear(64, 64),
        lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.25),
        [(x, x.roll(1, 1)) for x in inputs],
        lambda output, batch: nn.functional.mse_loss(output, batch[1]),
        strategy=strategy,
        device="cpu",
    )
    losses = []
    while len(losses) < num_steps:
        losses += [float(accelerated.train_step(b)) for b in accelerated.loader]
    return accelerated, losses


@pytest.fixture
def without_library(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "bitsandbytes" else real(name, *rest),
    )


@pytest.mark.slow
def test_adamw_8bit_keeps_the_contract():
    check_optimization(adamw_8bit.AdamW8bit(), config={"min_8bit_size": 1})


def test_adamw_8bit_is_found_by_its_entry_point():
    found = entry_points(group="drivetrain.optimizations")["adamw_8bit"]
    assert found.load() is adamw_8bit.AdamW8bit


def test_adamw_8bit_learns_with_moments_of_8_bits():
    accelerated, losses = trained(["adamw_8bit"], num_steps=40)
    assert losses[-1] < 0.5 * losses[0]
    optimizer = accelerated.optimizer
    assert isinstance(optimizer, bitsandbytes.optim.AdamW8bit)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.01, 0.25)
    dtypes = {
        name: optimizer.state[parameter]["state1"].dtype
        for name, parameter in accelerated.module.named_parameters()
    }
    assert dtypes == {"weight": torch.uint8, "bias": torch.float32}


@pytest.mark.parametrize(
    ("strategy", "code"),
    [
        (["adamw_8bit", "optimizer_impl"], "CONFLICT"),
        ([("adamw_8bit", {"beta1": -1.0})], "CONFIG"),
        ([("adamw_8bit", {"bits": 4})], "CONFIG"),
    ],
)
def test_adamw_8bit_refuses_what_it_cannot_do(strategy, code):
    with pytest.raises(PlanError) as caught:
        trained(strategy)
    assert caught.value.code == code


def test_adamw_8bit_without_its_library_says_what_to_install(
    without_library, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "500")  # no cell of the table is broken into lines
    with pytest.raises(PlanError, match="pip install bitsandbytes") as caught:
        trained(["adamw_8bit"])
    assert caught.value.code == "NEEDS_LIBRARY"
    assert main(["list"]) == 0
    assert "pip install bitsandbytes" in " ".join(capsys.readouterr().out.split())


def test_adamw_8bit_imports_neither_torch_nor_its_library():
    code = "import sys, adamw_8bit; print({'torch', 'bitsandbytes'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
