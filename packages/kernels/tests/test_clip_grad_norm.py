"""The norm of gradients, and their scaling, on torch's operators."""

import copy
import math

import pytest
import torch
from kernel_checks import normal

from drivetrain_kernels import (
    DtypeError,
    ImplementationNameError,
    OptionError,
    clip_grad_norm_,
    explain,
)

IMPLS = ["torch", "reference"]


def parameters(shapes=((3, 5), (0,), (), (7,)), dtype=torch.float64):
    found = []
    for weight in normal(*shapes, dtype=dtype):
        weight.grad = weight * 2
        found.append(weight)
    return [*found, torch.zeros(2)]  # the last has no gradient


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.5, math.inf])
@pytest.mark.parametrize("max_norm", [0.0, 0.7, 1e6])
def test_clip_equals_torch(impl, norm_type, max_norm):
    ours, theirs = parameters(), parameters()
    found = clip_grad_norm_(ours, max_norm, norm_type=norm_type, impl=impl)
    there = [weight for weight in theirs if weight.numel()]  # torch fails without
    wanted = torch.nn.utils.clip_grad_norm_(there, max_norm, norm_type)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-13)
    for one, other in zip(ours[:-1], theirs[:-1], strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-13)
    assert ours[-1].grad is None


@pytest.mark.parametrize("impl", IMPLS)
def test_clip_keeps_narrow_gradients_narrow(impl):
    weights = parameters(dtype=torch.bfloat16)
    exact = torch.cat([w.grad.double().flatten() for w in weights[:-1]]).norm()
    total = clip_grad_norm_(weights, 1.0, impl=impl)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total.double(), exact, rtol=1e-2, atol=0)
    assert weights[0].grad.dtype == torch.bfloat16


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_clip_tells_of_a_norm_that_is_not_finite_before_it_changes_anything(impl, bad):
    weights = parameters()
    weights[0].grad[0, 0] = bad
    before = copy.deepcopy([w.grad for w in weights[:-1]])
    with pytest.raises(RuntimeError, match=r"the norm must be finite, got .*nothing"):
        clip_grad_norm_(weights, 1.0, error_if_nonfinite=True, impl=impl)
    for one, other in zip(before, weights, strict=False):
        assert torch.equal(one, other.grad) or not one.isfinite().all()
    total = clip_grad_norm_(weights, 1.0, impl=impl)
    assert not torch.isfinite(total)
    assert weights[3].grad.isnan().all() == math.isnan(bad)


def test_clip_takes_one_tensor_and_none_at_all():
    weight = torch.zeros(2)
    assert clip_grad_norm_(weight, 1.0) == 0
    assert clip_grad_norm_([], 1.0) == 0
    weight.grad = torch.tensor([3.0, 4.0])
    assert clip_grad_norm_(weight, 1.0) == 5
    torch.testing.assert_close(weight.grad, torch.tensor([0.6, 0.8]))


def test_clip_takes_a_generator_of_parameters():
    model = torch.nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    total = clip_grad_norm_(model.parameters(), 1.0)
    torch.testing.assert_close(total, torch.tensor(8.0).sqrt())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_clip_of_sharded_gradients_counts_them_whole(ranks_of_one, dtype):
    from torch.distributed.tensor import Shard, distribute_tensor

    (plain,) = normal((4, 2), dtype=dtype)
    plain.grad = plain.clone()
    weight = distribute_tensor(plain, ranks_of_one, [Shard(0)])
    weight.grad = distribute_tensor(plain.clone(), ranks_of_one, [Shard(0)])
    assert explain(clip_grad_norm_, [weight], 1.0).implementation == "torch"
    found = clip_grad_norm_([weight], 1.0)
    torch.testing.assert_close(found, clip_grad_norm_([plain], 1.0))
    torch.testing.assert_close(weight.grad.full_tensor(), plain.grad)
    with pytest.raises(
        OptionError, match="all gradients or none must be sharded, got 1"
    ):
        clip_grad_norm_([weight, plain], 1.0)


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (OptionError, "max_norm must be >= 0", {"max_norm": -1.0}),
        (OptionError, "max_norm must be >= 0", {"max_norm": math.nan}),
        (OptionError, "norm_type must be >= 1", {"norm_type": 0.5}),
        (OptionError, "max_norm must be a number, got 'x'", {"max_norm": "x"}),
        (OptionError, "norm_type must be a number", {"norm_type": "inf"}),
    ],
    ids=str,
)
def test_clip_refuses_what_is_no_norm(error, message, options):
    with pytest.raises(error, match=message):
        clip_grad_norm_(**{"parameters": parameters(), "max_norm": 1.0, **options})


def test_clip_refuses_complex_gradients():
    weight = torch.zeros(2, dtype=torch.complex64)
    weight.grad = weight.clone()
    with pytest.raises(DtypeError, match="a gradient must be float64"):
        clip_grad_norm_([weight], 1.0)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_clip_sums_narrow_gradients_in_float32(impl, dtype):
    weight = torch.zeros(1000, dtype=dtype)
    weight.grad = torch.full((1000,), 6e4, dtype=dtype)  # their norm is no float16
    expected = weight.grad.double().norm()
    found = clip_grad_norm_([weight], 1.0, impl=impl)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(
        weight.grad.double().norm().item(), 1.0, rtol=0.01, atol=0
    )


def test_clip_records_no_graph():
    weight = torch.nn.Parameter(torch.ones(3))
    (grad,) = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)
    weight.grad = grad
    assert not clip_grad_norm_([weight], 1.0).requires_grad


def test_clip_refuses_sparse_gradients_and_what_is_no_tensor():
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(OptionError, match="a gradient must be dense"):
        clip_grad_norm_(table.parameters(), 1.0)
    with pytest.raises(DtypeError, match="parameters must be tensors, got int"):
        clip_grad_norm_([1], 1.0)
    with pytest.raises(DtypeError, match="an iterable of tensors, got NoneType"):
        clip_grad_norm_(None, 1.0)


def test_name_that_is_none_is_an_error_without_gradients_too():
    with pytest.raises(ImplementationNameError, match="no implementation 'foo'"):
        clip_grad_norm_([], 1.0, impl="foo")
