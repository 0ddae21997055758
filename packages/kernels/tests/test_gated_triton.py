"""The Triton kernels of SwiGLU and GEGLU, interpreted."""

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

from drivetrain_kernels import geglu, swiglu

OPS = {
    "silu": swiglu,
    "tanh": geglu,
    "none": lambda g, u, impl: geglu(g, u, approximate="none", impl=impl),
}


def forms(name):
    op = OPS[name]
    return lambda g, u: op(g, u, impl="triton"), lambda g, u: op(g, u, impl="reference")


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 123), (2, 8193)], ids=str)
def test_gated_kernels_equal_the_reference(name, shape):
    same(*forms(name), normal(shape, shape), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", OPS)
def test_gated_kernels_are_as_exact_as_the_plain_path_in_bfloat16(name):
    triton, reference = forms(name)
    as_exact_as(triton, reference, reference, normal((64, 65), (64, 65)))


def test_gated_kernels_read_halves_where_they_lie():
    (both,) = normal((3, 5, 20), dtype=torch.float32)
    for name in OPS:
        triton, reference = forms(name)
        for pair in (both.chunk(2, -1), (both[:, ::2], both[:, ::2] * 2)):
            torch.testing.assert_close(triton(*pair), reference(*pair))


def test_gated_kernels_keep_their_results_far_from_zero():
    gate = torch.tensor([-1e4, -100.0, -20.0, 20.0, 100.0, 1e4])
    for name in OPS:
        found = [outcome(f, [gate, torch.ones(6)]) for f in forms(name)]
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)


def test_gated_operator_passes_opcheck_and_compiles():
    from drivetrain_kernels.ops import _triton_gated

    gate, up = (t.requires_grad_() for t in normal((2, 6), (2, 6)))
    torch.library.opcheck(_triton_gated._gated, (gate, up, "silu"))
    triton, _ = forms("tanh")
    compiled = torch.compile(triton, backend="aot_eager", fullgraph=True)
    same(compiled, triton, [gate, up])
