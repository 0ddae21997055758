"""`replace` by Triton's kernels, in the interpreter."""

import os

import pytest
import torch

pytest.importorskip("triton")

from replace_models import Model
from torch import nn

from drivetrain_kernels import replace

pytestmark = [
    pytest.mark.extra,
    pytest.mark.interpreter,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1"
    ),
]

TRITON = dict.fromkeys(("rms_norm", "layer_norm", "swiglu", "geglu"), "triton")
X = torch.linspace(-2.0, 2.0, 48).view(2, 3, 8)


def outcome(model):
    model.zero_grad()
    out = model(X)
    (out * torch.arange(out.numel()).cos().view(out.shape)).sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters())]


def test_kernels_stand_in_forward_and_backward():
    model = Model()
    expected = outcome(model)
    replacement = replace(model, TRITON)
    assert len(replacement.replaced) == 7
    assert {one.impl for one in replacement.replaced} == {"triton"}
    for ours, theirs in zip(outcome(model), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_replaced_block_compiles_whole():
    block = nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8, eps=1e-6))
    expected = block(X)
    replace(block, TRITON)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), expected, rtol=1e-4, atol=1e-5)
