"""The Triton kernel of rotary embeddings, interpreted."""

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

from drivetrain_kernels import ImplementationError, rope

FORMS = {
    "all columns": {},
    "interleaved": {"interleaved": True},
    "some columns": {"rotary_dim": 6},
    "some, interleaved": {"rotary_dim": 6, "interleaved": True},
    "positions of a batch": {"positions": torch.tensor([[4, 5, 6], [0, 1, 9]])},
}


def forms(options):
    return (
        lambda q, k: rope(q, k, impl="triton", **options),
        lambda q, k: rope(q, k, impl="reference", **options),
    )


@pytest.mark.parametrize("form", FORMS)
def test_rope_kernel_equals_the_reference(form):
    tensors = normal((2, 3, 3, 10), (2, 3, 1, 10))
    same(*forms(FORMS[form]), tensors, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", [(0, 3, 2, 4), (2, 3, 0, 4)], ids=str)
def test_rope_kernel_takes_nothing(shape):
    for one in outcome(forms({})[0], normal(shape, shape)):
        assert one.shape == shape


def test_rope_kernel_takes_packed_sequences():
    options = {"cu_seqlens": torch.tensor([0, 2, 5])}
    same(*forms(options), normal((5, 2, 4), (5, 1, 4)), rtol=1e-12, atol=1e-13)


def test_rope_kernel_reads_slices_where_they_lie():
    (qkv,) = normal((1, 4, 3, 24))
    q, k, _ = qkv.chunk(3, -1)
    for pair in ((q, k), (q.transpose(1, 2), k.transpose(1, 2))):
        for one, other in zip(*(f(*pair) for f in forms({})), strict=True):
            torch.testing.assert_close(one, other)


def test_rope_kernel_reads_heads_that_lie_billions_of_elements_apart():
    # Memory that nobody writes takes no room.
    stride = 2**30 + 8
    memory = torch.empty(2 * stride + 4, dtype=torch.bfloat16)
    q = memory.as_strided((1, 1, 3, 4), (1, 1, stride, 1))
    q.copy_(normal((1, 1, 3, 4))[0])
    k = q[:, :, :1]
    for one, other in zip(*(f(q, k) for f in forms({})), strict=True):
        torch.testing.assert_close(one, other)


def test_rope_kernel_is_as_exact_as_the_reference_in_bfloat16():
    triton, reference = forms({})
    as_exact_as(triton, reference, reference, normal((1, 9, 2, 16), (1, 9, 1, 16)))


def test_rope_kernel_refuses_trained_tables():
    x = torch.ones(1, 2, 1, 4)
    cos = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(ImplementationError, match="no gradient of cos and sin"):
        rope(x, x, cos, cos, impl="triton")


def test_rope_operator_passes_opcheck_and_compiles():
    from drivetrain_kernels.ops import _triton_rope

    x, cos, sin = normal((1, 2, 2, 6), (2, 2), (2, 2))
    torch.library.opcheck(
        _triton_rope._rotate, (x.requires_grad_(), cos, sin, True, False)
    )
    triton, _ = forms({})
    compiled = torch.compile(triton, backend="aot_eager", fullgraph=True)
    same(compiled, triton, [x[..., :4], x[..., :4]])
