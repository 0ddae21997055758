"""The modules run the ops, and read the state dicts of torch's own."""

import pytest
import torch
from kernel_checks import normal

from drivetrain_kernels import (
    GEGLU,
    AddRMSNorm,
    LayerNorm,
    RMSNorm,
    SwiGLU,
    add_rms_norm,
    geglu,
    rms_norm,
    swiglu,
)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RMSNorm(6), torch.nn.RMSNorm(6, eps=1e-6)),
        (LayerNorm(6), torch.nn.LayerNorm(6)),
        (LayerNorm(6, bias=False), torch.nn.LayerNorm(6, bias=False)),
    ],
    ids=["rms", "layer", "layer without bias"],
)
def test_norm_modules_exchange_state_dicts_with_torch(ours, theirs):
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 6)
    torch.testing.assert_close(ours(x), theirs(x))
    theirs.load_state_dict(ours.state_dict())


def test_norm_module_with_an_offset_starts_as_one_without():
    x = torch.randn(3, 6)
    gemma = RMSNorm(6, offset=1.0, cast="float32")
    assert not gemma.weight.any()
    torch.testing.assert_close(gemma(x), RMSNorm(6)(x))


def test_modules_run_their_ops():
    x, y = normal((3, 6), (3, 6), dtype=torch.float32)
    assert torch.equal(SwiGLU()(x, y), swiglu(x, y))
    exact = geglu(x, y, approximate="none")
    assert torch.equal(GEGLU(approximate="none")(x, y), exact)
    for one, other in zip(AddRMSNorm(6)(x, y), add_rms_norm(x, y), strict=True):
        torch.testing.assert_close(one, other)
    assert torch.equal(RMSNorm(6, impl="reference")(x), rms_norm(x, impl="reference"))


def test_modules_take_device_and_dtype():
    module = LayerNorm(6, device="meta", dtype=torch.bfloat16)
    assert (module.weight.device.type, module.bias.dtype) == ("meta", torch.bfloat16)
    assert "eps=1e-05" in repr(module)
