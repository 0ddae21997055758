"""Compilation in place: it compiles, shares, and leaves the module's names alone."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from drivetrain_core._model.compile_in_place import compile_in_place

# Dynamo looks for gradients of what one compiled block hands to the next.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@pytest.fixture(autouse=True)
def fresh():
    """Forgets what other tests compiled."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


class Own(nn.Module):
    """A block with a forward of its own."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.linear(x))


def torchs_own():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())


@pytest.mark.slow
@pytest.mark.parametrize("make", [Own, torchs_own])
def test_blocks_are_compiled_and_share_it(make):
    blocks = [make() for _ in range(10)]
    x = torch.randn(3, 4)
    expected = nn.Sequential(*blocks)(x)
    for block in blocks:
        compile_in_place(block)
    assert not counters["stats"]
    out = nn.Sequential(*blocks)(x)
    torch.testing.assert_close(out, expected)
    # The first block's input needs no gradient, and those of the others do.
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("make", [Own, torchs_own])
def test_gradients_and_names_are_those_of_the_module(make):
    block = make()
    twin = copy.deepcopy(block)
    compile_in_place(block)
    x = torch.randn(3, 4)
    for module in (block, twin):
        module(x).square().sum().backward()
    mine, its = dict(block.named_parameters()), dict(twin.named_parameters())
    assert mine.keys() == its.keys()
    for name, parameter in mine.items():
        torch.testing.assert_close(parameter.grad, its[name].grad)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_compiled_block_can_be_copied():
    block = torchs_own()
    compile_in_place(block)
    twin = copy.deepcopy(block)
    x = torch.randn(3, 4)
    torch.testing.assert_close(twin(x), block(x))
    with torch.no_grad():
        twin[0].weight.zero_()
    assert not torch.equal(twin(x), block(x))


CHILD = """
import sys, torch
from drivetrain_core._model.compile_in_place import compile_in_place
torch.manual_seed(0)
module = torch.nn.Softmax(-1)
x = torch.randn(32, 100)
expected = module(x)
compile_in_place(module)
with torch.no_grad():
    torch.testing.assert_close(module(x), expected)
print(torch.backends.cpu.get_cpu_capability())
"""


@pytest.mark.slow
def test_cached_code_of_another_width_of_vectors_is_not_taken(tmp_path):
    """Inductor's own key would take it: with 16 lanes written and 8 compiled."""

    def capability(wanted):
        limit = {} if wanted is None else {"ATEN_CPU_CAPABILITY": wanted}
        run = subprocess.run(
            [sys.executable, "-c", CHILD],
            env={**unlimited, **limit, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout.strip()

    unlimited = {k: v for k, v in os.environ.items() if k != "ATEN_CPU_CAPABILITY"}
    # A pool of compilers takes longer to start than the one kernel to compile.
    unlimited["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    best = capability(None)
    assert capability("avx2") in {"AVX2", best}
    assert capability("default") in {"DEFAULT", best}
    assert capability(None) == best
