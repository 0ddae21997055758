"""Softmax cross-entropy against torch's, and what torch's lacks against its formula."""

import itertools
import math

import pytest
import torch
from kernel_checks import as_exact_as, normal, same
from torch.nn import functional

from drivetrain_kernels import (
    DeviceError,
    DtypeError,
    ImplementationError,
    IndexRangeError,
    OptionError,
    ShapeError,
    cross_entropy,
    explain,
)

IMPLS = ["torch", "reference"]
TARGET = torch.tensor([0, 10, -100, 3, 3, 7])


def spelled_out(logits, target, *, label_smoothing=0.0, z_loss=0.0, softcap=None):
    """The sum of the losses, as their definitions have it."""
    z = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    log_p = functional.log_softmax(z, -1)
    wanted = functional.one_hot(target.clamp(min=0), z.shape[-1]) * (
        1 - label_smoothing
    )
    wanted = wanted + label_smoothing / z.shape[-1]
    losses = -(wanted * log_p).sum(-1) + z_loss * torch.logsumexp(z, -1) ** 2
    return losses[target != -100].sum()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
def test_cross_entropy_equals_that_of_torch(impl, reduction, label_smoothing):
    options = {"reduction": reduction, "label_smoothing": label_smoothing}
    same(
        lambda z: cross_entropy(z, TARGET, impl=impl, **options),
        lambda z: functional.cross_entropy(z, TARGET, **options),
        normal((6, 11)),
    )


@pytest.mark.parametrize(
    "options",
    [
        {"z_loss": 0.01},
        {"softcap": 2.0},
        {"z_loss": 0.1, "softcap": 3.0, "label_smoothing": 0.2},
    ],
    ids=str,
)
def test_cross_entropy_adds_z_loss_and_soft_cap(options):
    same(
        lambda z: cross_entropy(3 * z, TARGET, reduction="sum", **options),
        lambda z: spelled_out(3 * z, TARGET, **options),
        normal((6, 11)),
    )
    (logits,) = normal((4, 5))
    target = torch.tensor([0, 1, 2, 3])
    assert torch.autograd.gradcheck(
        lambda z: cross_entropy(z, target, **options), logits.requires_grad_()
    )


def test_cross_entropy_returns_the_z_loss_that_is_in_it():
    (logits,) = normal((6, 11))
    plain = cross_entropy(logits, TARGET)
    loss, z_loss = cross_entropy(logits, TARGET, z_loss=0.1, return_z_loss=True)
    torch.testing.assert_close(loss - z_loss, plain)
    squares = torch.logsumexp(logits, -1)[TARGET != -100] ** 2
    torch.testing.assert_close(z_loss, 0.1 * squares.mean())
    assert not z_loss.requires_grad


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_of_no_tokens_has_the_same_z_loss_by_every_implementation(
    reduction,
):
    logits, target = torch.zeros(3, 5), torch.full((3,), -100)
    found = [
        cross_entropy(
            logits, target, reduction=reduction, return_z_loss=True, impl=impl
        )
        for impl in ("torch", "reference")
    ]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cross_entropy_of_narrow_logits_is_float32(impl, dtype):
    (logits,) = normal((64, 33), dtype=dtype)
    target = torch.arange(64) % 33
    assert cross_entropy(logits, target, impl=impl).dtype is torch.float32
    as_exact_as(
        lambda z: cross_entropy(z, target, impl=impl),
        lambda z: functional.cross_entropy(z, target),
        lambda z: functional.cross_entropy(z, target),
        [logits],
        dtype,
    )


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(
    ("shape", "leading"), [((0, 5), (0,)), ((2, 0, 5), (2, 0)), ((5,), ())]
)
def test_cross_entropy_takes_any_leading_shape(impl, shape, leading):
    logits = torch.zeros(shape)
    target = torch.zeros(leading, dtype=torch.int32)
    losses = cross_entropy(logits, target, reduction="none", impl=impl)
    assert losses.shape == leading
    assert cross_entropy(logits, target, reduction="sum", impl=impl) == pytest.approx(
        math.log(5) * target.numel()
    )


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_cross_entropy_of_ignored_tokens_is_nan_with_no_gradient(impl, label_smoothing):
    logits = torch.randn(3, 5, requires_grad=True)
    target = torch.full((3,), 99)
    options = {"ignore_index": 99, "label_smoothing": label_smoothing, "impl": impl}
    loss = cross_entropy(logits, target, **options)
    assert loss.isnan()
    loss.backward()
    assert torch.equal(logits.grad, torch.zeros(3, 5))
    assert cross_entropy(logits, target, reduction="sum", **options) == 0


def test_cross_entropy_takes_non_contiguous_logits():
    same(
        lambda z: cross_entropy(z.t(), TARGET),
        lambda z: functional.cross_entropy(z.t().contiguous(), TARGET),
        normal((11, 6)),
    )


def test_cross_entropy_takes_infinite_logits():
    logits = torch.tensor([[0.0, -math.inf, 1.0], [3e38, 0.0, 1.0]])
    target = torch.tensor([0, 0])
    for impl in IMPLS:
        found = cross_entropy(logits, target, reduction="none", impl=impl)
        torch.testing.assert_close(found, torch.tensor([1.3132617, 0.0]))


def test_cross_entropy_compiles_without_a_break():
    compiled = torch.compile(cross_entropy, fullgraph=True, backend="aot_eager")
    (logits,) = normal((6, 11))
    for options in ({}, {"z_loss": 0.1}):
        same(
            lambda z, o=options: compiled(z, TARGET, **o),
            lambda z, o=options: cross_entropy(z, TARGET, **o),
            [logits],
        )


def test_cross_entropy_is_explained():
    told = explain(
        "cross_entropy", torch.zeros(2, 3), torch.tensor([0, 1]), softcap=1.0
    )
    assert told.implementation == "reference"
    assert ("torch", "has neither a z-loss nor a soft cap") in told.passed_over


@pytest.mark.parametrize("target", [[0, 5], [-1, 0], [-100, 9]])
def test_cross_entropy_names_a_target_that_is_out_of_range(target):
    with pytest.raises(IndexRangeError, match=r"must be in 0 to 4 .* at token [01]"):
        cross_entropy(torch.zeros(2, 5), torch.tensor(target))


def test_cross_entropy_refuses_what_does_not_fit():
    logits, target = torch.zeros(2, 5), torch.tensor([0, 1])
    calls = itertools.chain(
        [
            (ShapeError, (logits, target[:1]), {}),
            (ShapeError, (torch.zeros(2, 0), target), {}),
            (ShapeError, (torch.zeros(()), target), {}),
            (DtypeError, (logits.long(), target), {}),
            (DtypeError, (logits, target.float()), {}),
            (DeviceError, (logits, target.to("meta")), {}),
            (ImplementationError, (logits, target), {"impl": "torch", "z_loss": 0.1}),
        ],
        [
            (OptionError, (logits, target), option)
            for option in (
                {"reduction": "max"},
                {"label_smoothing": 1.5},
                {"z_loss": -1.0},
                {"z_loss": math.nan},
                {"softcap": 0.0},
            )
        ],
    )
    for error, args, options in calls:
        with pytest.raises(error, match=r"^cross_entropy: "):
            cross_entropy(*args, **options)
