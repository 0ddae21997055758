"""Attention against its definition, without windows."""

import math

import pytest
import torch
from attention_cases import attend_by_loops, qkv
from kernel_checks import as_exact_as, outcome, same
from torch.nn import functional

from drivetrain_kernels import (
    DeviceError,
    DtypeError,
    ImplementationError,
    OptionError,
    ShapeError,
    attention,
    explain,
)

IMPLS = ["sdpa", "reference"]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (4, 1)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(9, 9), (3, 9), (1, 1), (1, 7)])
def test_attention_equals_its_definition(impl, heads, causal, num_queries, num_keys):
    same(
        lambda *t: attention(*t, causal=causal, impl=impl),
        lambda *t: attend_by_loops(*t, causal=causal),
        qkv(num_queries, num_keys, heads),
    )


@pytest.mark.parametrize("impl", IMPLS)
def test_attention_takes_a_scale(impl):
    same(
        lambda *t: attention(*t, scale=0.7, impl=impl),
        lambda *t: attend_by_loops(*t, scale=0.7),
        qkv(),
    )


def test_attention_caps_scores():
    same(
        lambda *t: attention(*t, softcap=1.5, scale=2.0),
        lambda *t: attend_by_loops(*t, softcap=1.5, scale=2.0),
        qkv(),
    )


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("num_keys", [0, 4])
def test_attention_of_a_query_that_sees_no_key_is_zero(impl, num_keys):
    q, k, v = (t.requires_grad_() for t in qkv(9, num_keys))
    out = attention(q, k, v, impl=impl)
    assert torch.equal(out[:, : 9 - num_keys], torch.zeros_like(out[:, : 9 - num_keys]))
    grads = torch.autograd.grad(out.sum(), (q, k, v), allow_unused=True)
    assert not any(g.isnan().any() for g in grads if g is not None)
    if num_keys:
        torch.testing.assert_close(out[:, 5:], attend_by_loops(q[:, 5:], k, v))


@pytest.mark.parametrize("impl", [*IMPLS, "auto"])
@pytest.mark.parametrize("sizes", [{"batch": 0}, {"num_queries": 0}, {"heads": (0, 1)}])
def test_attention_of_nothing_is_nothing(impl, sizes):
    q, k, v = qkv(**sizes)
    out = attention(q.requires_grad_(), k, v, impl=impl)
    assert out.shape == q.shape
    out.sum().backward()
    assert q.grad.shape == q.shape


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_of_narrow_tensors_is_as_exact_as_torch(impl, dtype):
    def plain(q, k, v):
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        p = scores.masked_fill(~mask, -math.inf).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", p, v)

    as_exact_as(
        lambda *t: attention(*t, impl=impl), plain, plain, qkv(40, 40, dim=32), dtype
    )


@pytest.mark.parametrize("impl", IMPLS)
def test_attention_takes_non_contiguous_tensors(impl):
    same(
        lambda q, k, v: attention(
            *(t.transpose(1, 2).flip(-1) for t in (q, k, v)), impl=impl
        ),
        lambda q, k, v: attend_by_loops(
            *(t.transpose(1, 2).flip(-1) for t in (q, k, v))
        ),
        qkv(2, 2, heads=(9, 9)),
    )


@pytest.mark.parametrize("impl", IMPLS)
def test_attention_drops_probabilities(impl):
    q, k, _ = qkv(16, 16, batch=16)
    out = attention(q, k, torch.ones_like(k), causal=False, dropout_p=0.5, impl=impl)
    assert 0.9 < float(out.mean()) < 1.1
    assert float(out.std()) > 0.05
    again = attention(q, k, torch.ones_like(k), causal=False, dropout_p=0.0, impl=impl)
    torch.testing.assert_close(again, torch.ones_like(again))


@pytest.mark.slow
def test_attention_compiles_without_a_break():
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    for options in ({}, {"causal": False}, {"softcap": 2.0}):
        same(
            lambda *t, o=options: compiled(*t, **o),
            lambda *t, o=options: attention(*t, **o),
            qkv(heads=(4, 2)),
        )


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 4])
def test_attention_compiles_for_any_length(window):
    compiled = torch.compile(
        attention, fullgraph=True, backend="aot_eager", dynamic=True
    )
    for length in (90, 107):
        same(
            lambda *t: compiled(*t, window=window),
            lambda *t: attention(*t, window=window),
            qkv(length, length, batch=1),
        )


def test_attention_reference_has_second_gradients():
    q, k, v = (t.requires_grad_() for t in qkv(3, 3, batch=1, dim=2))
    assert torch.autograd.gradcheck(
        lambda *t: attention(*t, impl="reference"), (q, k, v)
    )
    assert torch.autograd.gradgradcheck(
        lambda *t: attention(*t, impl="reference"), (q, k, v)
    )


def test_attention_is_that_of_torch_where_torch_has_it():
    q, k, v = qkv()
    assert explain("attention", q, k, v).implementation == "sdpa"
    heads_first = (t.transpose(1, 2) for t in (q, k, v))
    wanted = functional.scaled_dot_product_attention(
        *heads_first, is_causal=True
    ).transpose(1, 2)
    torch.testing.assert_close(attention(q, k, v), wanted)
    told = explain("attention", q, k, v, softcap=1.0)
    assert told.implementation == "reference"
    assert ("sdpa", "has no soft cap") in told.passed_over


def test_attention_leaves_its_arguments_as_they_were():
    tensors = qkv()
    copies = [t.clone() for t in tensors]
    outcome(attention, tensors)
    assert all(map(torch.equal, tensors, copies))


def test_attention_refuses_what_does_not_fit():
    q, k, v = qkv(heads=(4, 2))
    offsets = torch.tensor([0, 9])
    calls = [
        (
            ShapeError,
            (q, k[:, :, :1].expand(-1, -1, 3, -1), v[:, :, :1].expand(-1, -1, 3, -1)),
            {},
        ),
        (ShapeError, (q, k[:1], v[:1]), {}),
        (ShapeError, (q, k[..., :4], v[..., :4]), {}),
        (ShapeError, (q, k, v[:, :3]), {}),
        (ShapeError, (q[0], k[0], v[0]), {}),
        (ShapeError, (q, k, v), {"cu_seqlens_q": offsets}),
        (DtypeError, (q, k.float(), v.float()), {}),
        (DtypeError, (q.long(), k, v), {}),
        (DeviceError, (q, k.to("meta"), v), {}),
        (OptionError, (q, k, v), {"softcap": 0.0}),
        (OptionError, (q, k, v), {"dropout_p": 1.0}),
        (OptionError, (q, k, v), {"max_seqlen": 3}),
        (OptionError, (q, k, v), {"cu_seqlens_k": offsets}),
        (ImplementationError, (q, k, v), {"impl": "sdpa", "softcap": 1.0}),
        (ImplementationError, (q, k, v), {"impl": "blocked"}),
        (ImplementationError, (q, k, v), {"impl": "varlen"}),
        (ImplementationError, (q, k, v), {"impl": "flash"}),
    ]
    for error, args, options in calls:
        with pytest.raises(error, match=r"^attention: "):
            attention(*args, **options)
    with pytest.raises(ShapeError, match="a multiple of those of k and v, got 4 and 3"):
        attention(*calls[0][1])


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_scale_that_makes_no_probabilities_is_an_error(scale):
    q = torch.ones(1, 2, 1, 4)
    with pytest.raises(OptionError, match="scale must be a finite number > 0"):
        attention(q, q, q, scale=scale)


@pytest.mark.parametrize("options", [{}, {"window": 2, "softcap": 4.0}])
def test_empty_batch_is_empty(options):
    q = torch.zeros(0, 4096, 2, 4, requires_grad=True)
    out = attention(q, q.detach(), q.detach(), **options)
    out.sum().backward()
    assert out.shape == q.grad.shape == q.shape
