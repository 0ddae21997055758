"""Linear cross-entropy in chunks, against the logits as a whole."""

import gc
import itertools
import math

import pytest
import torch
from kernel_checks import as_exact_as, normal, same
from torch.library import opcheck
from torch.nn import functional

from drivetrain_kernels import (
    DeviceError,
    DtypeError,
    ImplementationError,
    IndexRangeError,
    OptionError,
    ShapeError,
    explain,
    linear_cross_entropy,
)
from drivetrain_kernels.ops import _linear_cross_entropy_autograd as operators
from drivetrain_kernels.ops import _linear_cross_entropy_chunks as chunks

TARGET = torch.tensor([0, 10, -100, 3, 3, 7, 1])
EXTRAS = [{}, {"label_smoothing": 0.1}, {"z_loss": 0.05}, {"softcap": 2.0}]
EXTRAS += [{"label_smoothing": 0.1, "z_loss": 0.05, "softcap": 2.0}]


def tensors(dtype=torch.float64, bias=True):
    """Hidden states of 7 tokens, a weight of 11 classes, and a bias."""
    return normal((7, 5), (11, 5), (11,), dtype=dtype)[: 2 + bias]


@pytest.mark.parametrize("impl", ["chunked", "torch"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.filterwarnings("ignore:.*linear_cross_entropy")
def test_linear_cross_entropy_equals_that_of_torch(impl, reduction):
    if impl == "torch" and not hasattr(functional, "linear_cross_entropy"):
        pytest.skip("this torch has no linear_cross_entropy")
    same(
        lambda x, w, b: linear_cross_entropy(
            x, w, TARGET, bias=b, reduction=reduction, chunk_tokens=3, impl=impl
        ),
        lambda x, w, b: functional.cross_entropy(
            functional.linear(x, w, b), TARGET, reduction=reduction
        ),
        tensors(),
    )


@pytest.mark.parametrize("num_counted", [0, 1, 2])
def test_linear_cross_entropy_is_the_mean_of_what_counts_however_little(num_counted):
    target = torch.full((7,), -100)
    target[2 : 2 + num_counted] = 3
    x, w, b = (tensor.requires_grad_() for tensor in tensors())
    found = linear_cross_entropy(x, w, target, bias=b, chunk_tokens=3, impl="chunked")
    wanted = functional.cross_entropy(functional.linear(x, w, b), target)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert found.isnan() == (num_counted == 0)


@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, None])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_linear_cross_entropy_has_every_option_in_chunks(chunk_tokens, reduction):
    for extra, bias in itertools.product(EXTRAS, [True, False]):
        options = extra | {"reduction": reduction}

        def call(x, w, *rest, impl, options=options, **more):
            b = rest[0] if rest else None
            return linear_cross_entropy(
                x, w, TARGET, bias=b, impl=impl, **options, **more
            )

        same(
            lambda *t, call=call: call(*t, impl="chunked", chunk_tokens=chunk_tokens),
            lambda *t, call=call: call(*t, impl="reference"),
            tensors(bias=bias),
        )


@pytest.mark.parametrize(
    "wanted", list(itertools.product([True, False], repeat=3))[:-1]
)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_linear_cross_entropy_leaves_frozen_tensors_alone(wanted, reduction):
    leaves = [t.requires_grad_(w) for t, w in zip(tensors(), wanted, strict=True)]
    x, w, b = leaves
    trained = [t for t in leaves if t.requires_grad]
    losses = [
        linear_cross_entropy(
            x, w, TARGET, bias=b, reduction=reduction, chunk_tokens=2, impl=impl
        ).sum()
        for impl in ("chunked", "reference")
    ]
    ours, theirs = (torch.autograd.grad(loss, trained) for loss in losses)
    torch.testing.assert_close(ours, theirs)


def test_linear_cross_entropy_makes_no_gradient_that_is_not_wanted(monkeypatch):
    made = []
    zeros = torch.zeros_like
    monkeypatch.setattr(
        torch, "zeros_like", lambda t, **o: made.append(t.shape) or zeros(t, **o)
    )
    x, w, b = tensors()
    linear_cross_entropy(x.requires_grad_(), w, TARGET, bias=b)
    assert made.count(x.shape) == 1
    assert made.count(w.shape) == 0
    made.clear()
    with torch.no_grad():
        linear_cross_entropy(x, w, TARGET, bias=b)
    assert x.shape not in made


def test_linear_cross_entropy_adds_the_gradients_of_a_tied_weight():
    def tied(call):
        def loss(w):
            return call(w[torch.tensor([1, 2, 3, 4, 5, 6, 7])].tanh(), w)

        return loss

    same(
        tied(lambda x, w: linear_cross_entropy(x, w, TARGET)),
        tied(lambda x, w: functional.cross_entropy(x @ w.t(), TARGET)),
        normal((11, 5)),
    )


def test_linear_cross_entropy_takes_a_second_backward():
    x, w, b = (t.requires_grad_() for t in tensors())
    loss = linear_cross_entropy(x, w, TARGET, bias=b, chunk_tokens=2)
    first = torch.autograd.grad(loss, (x, w, b), retain_graph=True)
    kept = [g.clone() for g in first]
    for grad in first:
        grad.fill_(math.nan)  # it is the caller's, and nothing of ours depends on it
    second = torch.autograd.grad(loss, (x, w, b), torch.tensor(2.0, dtype=loss.dtype))
    torch.testing.assert_close(list(second), [2 * k for k in kept])


@pytest.mark.slow
def test_linear_cross_entropy_frees_what_it_made():
    def count():
        kept = [o for o in gc.get_objects() if type(o) is torch.Tensor]
        return sum(t.shape == w.shape for t in kept)

    x, w = (t.requires_grad_() for t in tensors(bias=False))
    before = count()
    gc.disable()
    try:
        loss = linear_cross_entropy(x, w, TARGET)
        assert count() > before
        del loss
        assert count() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_linear_cross_entropy_of_narrow_tensors(dtype, reduction, monkeypatch):
    monkeypatch.setattr(chunks, "MIN_BLOCK_ROWS", 16)
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 4 * 32 * 50)
    target = torch.arange(40) % 101
    x, w = normal((40, 32), (101, 32))

    def call(x, w, impl="chunked"):
        return linear_cross_entropy(
            x, w, target, reduction=reduction, chunk_tokens=7, impl=impl
        )

    assert call(x.to(dtype), w.to(dtype)).dtype is torch.float32
    as_exact_as(
        call, lambda x, w: call(x, w, "reference"), lambda x, w: call(x, w, "reference"),
        [x, 0.3 * w], dtype,
    )  # fmt: skip


def test_linear_cross_entropy_in_float16_keeps_small_gradients_with_a_loss_scale():
    target = torch.arange(256) * 7

    def call(x, w, impl="chunked"):
        return 2**14 * linear_cross_entropy(x, w, target, chunk_tokens=100, impl=impl)

    as_exact_as(
        call,
        lambda x, w: call(x, w, "reference"),
        lambda x, w: call(x, w, "reference"),
        [0.1 * t for t in normal((256, 16), (3000, 16))],
        torch.float16,
        floor=1e-6,
    )


def test_linear_cross_entropy_loss_is_exact_in_float32():
    target = torch.arange(300) % 1000
    x, w = normal((300, 64), (1000, 64), dtype=torch.float32)
    exact = functional.cross_entropy(x.double() @ w.double().t(), target)
    found = linear_cross_entropy(x, w, target, chunk_tokens=32)
    assert abs(found.double() - exact) <= 2e-7 * exact


@pytest.mark.parametrize("impl", ["chunked", "reference"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_linear_cross_entropy_takes_no_tokens(impl, reduction):
    x, w = (
        torch.zeros(2, 0, 4, requires_grad=True),
        torch.ones(3, 4, requires_grad=True),
    )
    target = torch.zeros(2, 0, dtype=torch.int64)
    loss = linear_cross_entropy(x, w, target, reduction=reduction, impl=impl)
    assert loss.shape == ((2, 0) if reduction == "none" else ())
    assert bool(loss.isnan().all()) == (reduction != "sum")
    loss.sum().backward()
    assert torch.equal(w.grad, torch.zeros(3, 4))


@pytest.mark.parametrize("impl", ["chunked", "reference"])
def test_linear_cross_entropy_of_ignored_tokens_is_nan_with_no_gradient(impl):
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    loss = linear_cross_entropy(x, w, torch.full((3,), -100), impl=impl)
    assert loss.isnan()
    loss.backward()
    assert torch.equal(x.grad, torch.zeros(3, 4))
    assert torch.equal(w.grad, torch.zeros(5, 4))


def test_linear_cross_entropy_takes_non_contiguous_tensors():
    same(
        lambda x, w: linear_cross_entropy(x.t(), w.t(), TARGET, chunk_tokens=2),
        lambda x, w: functional.cross_entropy(x.t() @ w, TARGET),
        normal((5, 7), (5, 11)),
    )


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_linear_cross_entropy_converts_under_autocast(reduction):
    x, w, b = (t.requires_grad_() for t in tensors(torch.float32))
    losses = []
    with torch.autocast("cpu", torch.bfloat16):
        for impl in ("chunked", "reference"):
            loss = linear_cross_entropy(
                x, w, TARGET, bias=b, reduction=reduction, impl=impl
            )
            losses.append(loss.sum())
    ours, theirs = (torch.autograd.grad(loss, (x, w, b)) for loss in losses)
    assert all(g.dtype is torch.float32 for g in ours)
    torch.testing.assert_close(losses[0], losses[1], rtol=2e-2, atol=0)
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_linear_cross_entropy_compiles_without_a_break(reduction):
    def loss(x, w, b):
        return linear_cross_entropy(
            x.tanh(), w, TARGET, bias=b, reduction=reduction, chunk_tokens=3
        )

    same(torch.compile(loss, fullgraph=True, backend="aot_eager"), loss, tensors())


def test_linear_cross_entropy_compiles_for_any_number_of_tokens():
    def loss(x, w, target):
        return linear_cross_entropy(x, w, target, chunk_tokens=3)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (7, 9):
        target = torch.arange(length)
        same(
            lambda x, w, t=target: compiled(x, w, t),
            lambda x, w, t=target: loss(x, w, t),
            normal((length, 5), (11, 5)),
        )


def test_linear_cross_entropy_operators_are_registered_rightly():
    x, w, b = (t.requires_grad_() for t in tensors(torch.float32))
    numbers = (-100, 0.1, 0.1, 2.0, 3, "", False)
    opcheck(operators.linear_cross_entropy_losses, (x, w, b, TARGET, *numbers))
    wanted = [True, False, True]
    total = (x, w.detach(), b, TARGET, torch.tensor(0.3), *numbers, wanted)
    opcheck(operators.linear_cross_entropy_total, total)


def test_linear_cross_entropy_has_second_gradients_by_its_reference():
    x, w, _ = tensors()
    assert torch.autograd.gradgradcheck(
        lambda x, w: linear_cross_entropy(x, w, TARGET, impl="reference"),
        (x.requires_grad_(), w.requires_grad_()),
    )


def test_linear_cross_entropy_chunks_by_bytes():
    assert chunks.chunk_size(8192, 131072, 4, "cpu") == 256
    assert chunks.chunk_size(300, 131072, 4, "cpu") == 150  # equal chunks
    assert chunks.chunk_size(10, 10, 4, "cpu") == 10
    assert chunks.chunk_size(0, 10, 4, "cpu") == 1
    assert chunks.chunk_size(100, 10**9, 4, "cpu") == 15  # never too few


def test_linear_cross_entropy_is_explained():
    told = explain("linear_cross_entropy", *tensors(bias=False), TARGET)
    assert told.implementation == "chunked"


def test_linear_cross_entropy_refuses_what_does_not_fit():
    x, w, b = tensors()
    calls = [
        (ShapeError, (x, w[:, :4], TARGET), {}),
        (ShapeError, (x, w[0], TARGET), {}),
        (ShapeError, (x, w[:0], TARGET), {}),
        (ShapeError, (x, w, TARGET[:3]), {}),
        (ShapeError, (x, w, TARGET), {"bias": b[:3]}),
        (DtypeError, (x, w.float(), TARGET), {}),
        (DtypeError, (x, w, TARGET.float()), {}),
        (DeviceError, (x, w, TARGET.to("meta")), {}),
        (OptionError, (x, w, TARGET), {"chunk_tokens": 0}),
        (OptionError, (x, w, TARGET), {"reduction": "max"}),
        (IndexRangeError, (x, w, TARGET + 1), {}),
    ]
    for error, args, options in calls:
        with pytest.raises(error, match=r"^linear_cross_entropy: "):
            linear_cross_entropy(*args, **options)
    for options in ({"z_loss": 0.1}, {"reduction": "none"}):
        with pytest.raises(ImplementationError, match="'chunked', 'reference'"):
            linear_cross_entropy(x, w, TARGET, impl="torch", **options)


def test_linear_cross_entropy_refuses_a_second_derivative():
    hidden, weight = normal((5, 4), (7, 4))
    hidden.requires_grad_()
    loss = linear_cross_entropy(hidden, weight, torch.zeros(5, dtype=torch.long))
    (grad,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(ImplementationError, match="call the op with impl='reference'"):
        grad.square().sum().backward()


def test_linear_cross_entropy_under_transforms_is_the_reference():
    hidden, weight = normal((5, 4), (7, 4))
    target = torch.arange(5)
    found = torch.func.grad(linear_cross_entropy)(hidden, weight, target)
    expected = torch.func.grad(
        lambda h: functional.cross_entropy(h @ weight.t(), target)
    )(hidden)
    torch.testing.assert_close(found, expected)
    with pytest.raises(ImplementationError, match="has no rule for torch"):
        torch.func.grad(linear_cross_entropy)(hidden, weight, target, impl="chunked")


def test_linear_cross_entropy_takes_meta_tensors():
    hidden = torch.ones(5, 4, device="meta", requires_grad=True)
    target = torch.zeros(5, dtype=torch.long, device="meta")
    linear_cross_entropy(hidden, torch.ones(7, 4, device="meta"), target).backward()
    assert hidden.grad.shape == (5, 4)


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (OptionError, "softcap must be a number, got 'x'", {"softcap": "x"}),
        (OptionError, "z_loss must be a number, got None", {"z_loss": None}),
        (OptionError, "ignore_index must be a whole number", {"ignore_index": 1.5}),
        (OptionError, "chunk_tokens must be a whole number", {"chunk_tokens": 2.5}),
        (DtypeError, "bias must be a tensor, got int", {"bias": 3}),
        (DtypeError, "target must be a tensor, got list", {"target": [0] * 5}),
        (DtypeError, "hidden must be a tensor, got NoneType", {"hidden": None}),
        (DtypeError, "weight must be a tensor, got NoneType", {"weight": None}),
    ],
    ids=str,
)
def test_linear_cross_entropy_refuses_other_kinds_of_values(error, message, options):
    hidden, weight = normal((5, 4), (7, 4))
    target = torch.zeros(5, dtype=torch.long)
    call = {"hidden": hidden, "weight": weight, "target": target, **options}
    with pytest.raises(error, match=message):
        linear_cross_entropy(**call)


def test_hidden_states_without_dimensions_make_every_class_as_likely():
    loss = linear_cross_entropy(
        torch.zeros(3, 0), torch.zeros(5, 0), torch.tensor([0, 1, 2])
    )
    assert loss.item() == pytest.approx(math.log(5))
