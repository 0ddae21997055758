"""The Triton kernels of the gradients' norm, interpreted."""

import math
import os

import numpy as np
import pytest
import torch
from kernel_checks import normal

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.extra,
    pytest.mark.interpreter,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1"
    ),
]

from drivetrain_kernels import ImplementationError, clip_grad_norm_


def parameters(*dtypes, shapes=((3, 5), (0,), (), (70_000,))):
    found = []
    for dtype in dtypes:
        for weight in normal(*shapes, dtype=dtype):
            weight.grad = weight * 2
            found.append(weight)
    return found


@pytest.mark.parametrize("dtypes", [(torch.float64,), (torch.float32, torch.bfloat16)])
@pytest.mark.parametrize("max_norm", [0.7, 1e6])
def test_clip_kernels_equal_the_reference(dtypes, max_norm):
    ours, theirs = parameters(*dtypes), parameters(*dtypes)
    found = clip_grad_norm_(ours, max_norm, impl="triton")
    wanted = clip_grad_norm_(theirs, max_norm, impl="reference")
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_clip_kernels_scale_by_what_is_not_finite_as_torch_does(bad):
    ours, theirs = (parameters(torch.float32, shapes=((4,),)) for _ in range(2))
    for weight, impl in ((ours[0], "triton"), (theirs[0], "reference")):
        weight.grad[1] = bad
        with np.errstate(invalid="ignore"):
            clip_grad_norm_([weight], 1.0, impl=impl)
    torch.testing.assert_close(ours[0].grad, theirs[0].grad, equal_nan=True)


def test_clip_kernels_follow_gradients_that_move():
    (weight,) = parameters(torch.float32, shapes=((4,),))
    for _ in range(2):
        weight.grad = torch.full((4,), 2.0)
        assert clip_grad_norm_([weight], 1.0, impl="triton") == 4
        torch.testing.assert_close(weight.grad, torch.full((4,), 0.5))


def test_clip_table_is_of_one_stream_and_one_graph(monkeypatch):
    from drivetrain_kernels.ops import _triton_clip

    now = [(7, False)]
    monkeypatch.setattr(_triton_clip, "_stream", lambda device: now[0])
    grads = normal((70_000,))
    first = _triton_clip._table(grads)
    assert _triton_clip._table(grads) is first
    # Another stream has not waited for what this one copies.
    now[0] = (8, False)
    other = _triton_clip._table(grads)
    assert other is not first
    # What a graph copies is there once that graph is replayed, which may be never.
    now[0] = (8, True)
    captured = _triton_clip._table(grads)
    assert captured is not other
    assert _triton_clip._table(grads) is not captured
    assert any(device is captured for _, device in _triton_clip._captured)
    now[0] = (8, False)
    assert _triton_clip._table(grads) is other


def test_clip_kernels_refuse_other_norms():
    with pytest.raises(ImplementationError, match="knows the norm 2 only, got 1"):
        clip_grad_norm_(parameters(torch.float32), 1.0, norm_type=1.0, impl="triton")


def test_clip_operators_pass_opcheck():
    from drivetrain_kernels.ops import _triton_clip

    grads = normal((3,), (2, 2))
    torch.library.opcheck(_triton_clip.total_norm, (grads,))
    torch.library.opcheck(_triton_clip.scale, (grads, torch.tensor(2.0), 1.0))
