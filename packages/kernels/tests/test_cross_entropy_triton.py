"""The Triton kernels of the cross-entropy, interpreted or on a GPU."""

import math
import os

import pytest
import torch
from kernel_checks import as_exact_as, normal, outcome, same

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.extra,
    pytest.mark.interpreter,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1"
    ),
]

from drivetrain_kernels import cross_entropy, explain

MODES = [
    {},
    {"label_smoothing": 0.1},
    {"z_loss": 0.05, "softcap": 2.0, "label_smoothing": 0.2},
    {"reduction": "none", "z_loss": 0.05},
    {"reduction": "sum", "softcap": 3.0},
]


def forms(target, **options):
    return (
        lambda z: cross_entropy(z, target, impl="triton", **options),
        lambda z: cross_entropy(z, target, impl="reference", **options),
    )


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    "shape", [(7, 11), (2, 3, 123), (1, 1), (0, 4), (3, 5000)], ids=str
)
def test_cross_entropy_kernels_equal_the_reference_in_float64(mode, shape):
    target = (torch.arange(math.prod(shape[:-1])) * 7 % shape[-1]).view(shape[:-1])
    if target.numel() > 2:
        target.view(-1)[1] = -100
    same(*forms(target, **mode), normal(shape), rtol=1e-11, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_cross_entropy_kernels_are_as_exact_as_the_reference(dtype):
    triton, reference = forms(torch.arange(8) * 20, label_smoothing=0.1, softcap=5.0)
    # The loss is float32 for every dtype, so that its last bit is chance.
    as_exact_as(triton, reference, reference, normal((8, 200)), dtype, floor=2**-23)


def test_cross_entropy_kernels_take_rows_apart_and_columns_apart():
    target = torch.arange(6)
    same(*forms(target), [normal((6, 40))[0][:, :20]])
    same(
        lambda z: forms(target)[0](z.t()),
        lambda z: forms(target)[1](z.t()),
        normal((11, 6)),
    )


def test_cross_entropy_kernels_leave_logits_and_gradients_as_they_were():
    (logits,) = normal((5, 9))
    logits.requires_grad_()
    before = logits.detach().clone()
    losses = cross_entropy(logits, torch.arange(5), reduction="none", impl="triton")
    (grad,) = normal((5,), seed=3)
    kept = grad.clone()
    torch.autograd.grad(losses, logits, grad)
    assert torch.equal(logits, before)
    assert torch.equal(grad, kept)


def test_cross_entropy_kernels_give_no_gradient_to_ignored_tokens():
    logits = torch.full((3, 5), math.nan, requires_grad=True)
    loss = cross_entropy(logits, torch.full((3,), -100), reduction="sum", impl="triton")
    assert loss == 0
    loss.backward()
    assert torch.equal(logits.grad, torch.zeros(3, 5))
    mean = cross_entropy(logits.detach(), torch.full((3,), -100), impl="triton")
    assert mean.isnan()


def test_cross_entropy_kernels_take_infinite_logits():
    logits = torch.tensor([[0.0, -math.inf, 1.0], [3e38, 0.0, 1.0]])
    target = torch.tensor([0, 0])
    found = cross_entropy(logits, target, reduction="none", impl="triton")
    torch.testing.assert_close(found, torch.tensor([1.3132617, 0.0]))


def test_cross_entropy_kernels_mark_a_target_that_is_out_of_range():
    from drivetrain_kernels.ops._triton_cross_entropy import class_losses_of

    target = torch.tensor([0, 5, -100, -3])
    losses, *_ = class_losses_of(torch.zeros(4, 5), target, -100, 0.0, 0.0, 0.0)
    assert losses.isnan().tolist() == [False, True, False, True]


def test_cross_entropy_kernels_repeat_every_bit():
    triton, _ = forms(torch.arange(5), label_smoothing=0.1)
    tensors = normal((5, 300), dtype=torch.float32)
    assert all(map(torch.equal, outcome(triton, tensors), outcome(triton, tensors)))


def test_cross_entropy_kernels_are_operators_that_compile():
    from drivetrain_kernels.ops import _triton_cross_entropy as module

    logits = normal((5, 7), dtype=torch.float32)[0].requires_grad_()
    torch.library.opcheck(
        module._losses, (logits, torch.arange(5), -100, 0.1, 0.1, 2.0)
    )
    triton, _ = forms(torch.arange(5))
    compiled = torch.compile(triton, fullgraph=True, backend="aot_eager")
    same(compiled, triton, normal((5, 7)))


def test_cross_entropy_kernels_are_not_taken_unasked_on_a_cpu():
    told = explain("cross_entropy", torch.zeros(2, 3), torch.tensor([0, 1]))
    assert ("triton", "is only interpreted on a CPU") in told.passed_over
