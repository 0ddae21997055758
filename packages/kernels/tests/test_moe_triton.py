"""The Triton kernels of the mixture of experts, interpreted."""

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

from drivetrain_kernels import moe
from drivetrain_kernels.ops._moe_permute import (
    combine_rows,
    permute,
    sort_by_expert,
    unpermute,
)

EXPERTS = torch.tensor([[2, 0], [0, 1], [2, 1]])
COUNTS = torch.tensor([2, 2, 2])


def tensors(num_tokens=6):
    shapes = ((num_tokens, 8), (4, 8), (4, 16, 8), (4, 16, 8), (4, 8, 16))
    return normal(*shapes, dtype=torch.float32)


def brought_back(fused):
    order = sort_by_expert(EXPERTS, COUNTS)

    def call(x, weights):
        rows = permute(x, order, fused=fused).sin()
        return unpermute(
            rows,
            weights.to(torch.promote_types(x.dtype, torch.float32)),
            order,
            fused=fused,
        )

    return call


def test_moe_kernels_bring_tokens_back_as_the_reference_does():
    given = normal((3, 37), (3, 2))
    same(brought_back(True), brought_back(False), given, rtol=1e-12, atol=1e-13)


def test_moe_kernels_are_as_exact_as_the_reference_in_bfloat16():
    given = normal((3, 200), (3, 2))
    as_exact_as(brought_back(True), brought_back(False), brought_back(False), given)


@pytest.mark.parametrize("num_tokens", [0, 6])
def test_moe_by_triton_equals_the_reference(num_tokens):
    given = tensors(num_tokens)
    for one, other in zip(
        outcome(lambda *t: moe(*t, top_k=2, impl="triton").output, given),
        outcome(lambda *t: moe(*t, top_k=2, impl="split").output, given),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_moe_operator_by_triton_passes_opcheck():
    order = sort_by_expert(EXPERTS, COUNTS)
    y, weights = (t.requires_grad_() for t in normal((6, 5), (3, 2)))
    given = (y, weights, order.tokens, order.rows, True)
    torch.library.opcheck(combine_rows, given)
