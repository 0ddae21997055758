"""Attention on a GPU: every form that is there against the reference in float64."""

import pytest
import torch
from attention_cases import PACKED, TOKENS, qkv

from drivetrain_kernels import attention
from drivetrain_kernels.ops._attention import OP

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

CASES = [
    ((256, 256), {}),
    ((300, 300), {"window": 70}),
    ((130, 300), {"causal": False, "window": (33, 7)}),
    ((300, 130), {"window": 50}),
    ((128, 128), {"softcap": 5.0}),
]


def outcome(tensors, **options):
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = attention(*leaves, **options)
    grad = torch.linspace(-1, 1, out.numel(), device=out.device, dtype=out.dtype)
    return [out, *torch.autograd.grad(out, leaves, grad.view_as(out))]


def check(tensors, **options):
    exact = outcome([t.double() for t in tensors], impl="reference", **options)
    plain = outcome(tensors, impl="reference", **options)
    found, tried = OP.facts(*tensors, **options), []
    for one in OP.implementations[:-1]:
        if one.refuse(found) is not None:
            continue
        tried.append(one.name)
        ours = outcome(tensors, impl=one.name, **options)
        for mine, theirs, wanted in zip(ours, plain, exact, strict=True):
            size = wanted.norm() + 1e-30
            error, allowed = (
                (t.double() - wanted).norm() / size for t in (mine, theirs)
            )
            assert error <= 3 * allowed + 1e-5, one.name
    # Of those that refuse nothing is shown.
    assert "triton" in tried, tried
    assert len(tried) >= 2, tried


@pytest.mark.parametrize(("sizes", "options"), CASES, ids=str)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_attention_on_a_gpu_of_a_batch(sizes, options, dim, dtype):
    check([t.cuda() for t in qkv(*sizes, (4, 2), 2, dim, dtype)], **options)


@pytest.mark.parametrize("options", [{}, {"window": 7}], ids=str)
def test_attention_on_a_gpu_of_packed_sequences(options):
    tensors = [t.cuda() for t in qkv(TOKENS, TOKENS, (4, 2), None, 64, torch.bfloat16)]
    offsets = PACKED.clone()
    offsets[-1] = TOKENS  # kernels of others say nothing of tokens that belong to none
    check(tensors, cu_seqlens_q=offsets.cuda(), max_seqlen=35, **options)


@pytest.mark.parametrize("options", [{}, {"window": 50, "softcap": 5.0}], ids=str)
@pytest.mark.parametrize("dim", [80, 256])
def test_attention_on_a_gpu_of_float16_and_wide_heads(dim, options):
    for dtype in (torch.float16, torch.bfloat16):
        check([t.cuda() for t in qkv(130, 130, (4, 2), 2, dim, dtype)], **options)


def test_attention_on_a_gpu_of_more_sequences_than_an_axis_of_a_grid_takes():
    num_sequences, length, heads = 2100, 4, (32, 8)
    tokens = num_sequences * length
    tensors = [t.cuda() for t in qkv(tokens, tokens, heads, None, 64, torch.bfloat16)]
    offsets = torch.arange(0, tokens + 1, length, dtype=torch.int32, device="cuda")
    packed = {"cu_seqlens_q": offsets, "max_seqlen": length}
    ours = outcome(tensors, impl="triton", **packed)
    # Sequences of one length are a batch.
    batch = [t.view(num_sequences, length, *t.shape[1:]) for t in tensors]
    for mine, wanted in zip(ours, outcome(batch, impl="reference"), strict=True):
        difference = (mine - wanted.view_as(mine)).double().norm()
        assert difference <= 2e-2 * wanted.double().norm()
