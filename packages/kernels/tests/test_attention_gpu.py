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
    found = OP.facts(*tensors, **options)
    for one in OP.implementations[:-1]:
        if one.refuse(found) is not None:
            continue
        ours = outcome(tensors, impl=one.name, **options)
        for mine, theirs, wanted in zip(ours, plain, exact, strict=True):
            size = wanted.norm() + 1e-30
            error, allowed = (
                (t.double() - wanted).norm() / size for t in (mine, theirs)
            )
            assert error <= 3 * allowed + 1e-5, one.name


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
