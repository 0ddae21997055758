"""The Triton kernels of the normalising ops, interpreted."""

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

from drivetrain_kernels import (
    ImplementationError,
    add_rms_norm,
    dropout_add_rms_norm,
    layer_norm,
    rms_norm,
)

SHAPES = [(1, 1), (3, 123), (2, 2, 64), (0, 5), (3, 0)]
OPS = {
    "rms_norm": lambda x, r, w, **o: rms_norm(x, w, **o),
    "rms_norm, float32": lambda x, r, w, **o: rms_norm(x, w, cast="float32", **o),
    "rms_norm, offset": lambda x, r, w, **o: rms_norm(x, w, offset=1.0, **o),
    "rms_norm, bare": lambda x, r, w, **o: rms_norm(x, **o),
    "layer_norm": lambda x, r, w, **o: layer_norm(x, w, w, **o),
    "layer_norm, bare": lambda x, r, w, **o: layer_norm(x, **o),
    "add_rms_norm": lambda x, r, w, **o: add_rms_norm(x, r, w, **o),
    "dropout_add_rms_norm": lambda x, r, w, **o: dropout_add_rms_norm(
        x, r, w, p=0.4, seed=2**40 + 3, **o
    ),
}


def forms(name):
    op = OPS[name]
    return (
        lambda *t: op(*t, impl="triton"),
        lambda *t: op(*t, impl="reference"),
    )


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norm_kernels_equal_the_reference_in_float64(name, shape):
    tensors = normal(shape, shape, shape[-1:])
    same(*forms(name), tensors, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", OPS)
def test_norm_kernels_are_as_exact_as_the_reference_in_bfloat16(name):
    triton, reference = forms(name)
    tensors = normal((8, 200), (8, 200), (200,))
    as_exact_as(triton, reference, reference, tensors)


def test_norm_kernels_take_strided_rows_and_float32_weights():
    wide, w = normal((4, 3, 10), (5,), dtype=torch.float32)
    for x in (wide[..., 2:7], wide.transpose(0, 2)[:5].transpose(0, 2)):
        for dtype in (torch.float32, torch.bfloat16):
            row = x.to(dtype)[..., :5]
            same(
                lambda x, w: rms_norm(x, w, impl="triton"),
                lambda x, w: rms_norm(x, w, impl="reference"),
                [row, w],
                rtol=2e-2,
                atol=2e-2,
            )


def test_norm_kernels_drop_what_the_reference_drops():
    x, r = torch.ones(7, 37), torch.zeros(7, 37)
    for p in (0.25, 1.0):
        one, other = (
            dropout_add_rms_norm(x, r, p=p, seed=9, impl=impl)[1]
            for impl in ("triton", "reference")
        )
        assert torch.equal(one, other)


def test_norm_kernels_give_the_same_bits_again_and_change_no_gradient():
    tensors = normal((9, 33), (9, 33), (33,), dtype=torch.float32)
    triton, _ = forms("add_rms_norm")
    for one, other in zip(
        outcome(triton, tensors), outcome(triton, tensors), strict=True
    ):
        assert torch.equal(one, other)
    x = tensors[0].requires_grad_()
    y = rms_norm(x, impl="triton")
    grad = torch.ones_like(y)
    y.backward(grad)
    assert torch.equal(grad, torch.ones_like(y))


def test_norm_kernels_pass_on_the_gradient_of_the_sum_alone():
    x, r, w = (t.requires_grad_() for t in normal((3, 5), (3, 5), (5,)))
    _, total = add_rms_norm(x, r, w, impl="triton")
    total.sum().backward()
    assert torch.equal(x.grad, torch.ones(3, 5))
    assert not w.grad.any()


def test_norm_operator_passes_opcheck():
    from drivetrain_kernels.ops import _triton_norm

    x, r, w = (t.requires_grad_() for t in normal((2, 6), (2, 6), (6,)))
    seed = torch.tensor(1)
    torch.library.opcheck(
        _triton_norm._norm, (x, None, w, w, None, 1e-5, 0.0, 0.0, True, False)
    )
    torch.library.opcheck(
        _triton_norm._norm, (x, r, w, None, seed, 1e-6, 0.0, 0.5, False, True)
    )


def test_norm_kernels_compile_without_a_break():
    def step(x, r, w):
        return add_rms_norm(layer_norm(x, w, impl="triton"), r, w, impl="triton")

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    same(compiled, step, normal((2, 6), (2, 6), (6,)))


def test_norm_kernels_refuse_rows_that_are_too_wide():
    with pytest.raises(ImplementationError, match="rows of at most 65536 columns"):
        rms_norm(torch.ones(1, 65537), impl="triton")


def test_rounding_to_bfloat16_is_to_nearest_even():
    from drivetrain_kernels.ops import _triton_norm

    # Rows of one column are normalised to 1, so that the weight alone is rounded.
    bits = torch.arange(0x3F800000, 0x3F830000, 0x1000, dtype=torch.int32)
    for weight in bits.view(torch.float32)[:, None]:
        options = (0.0, 0.0, 0.0, False, False)
        x = torch.ones(1, 1, dtype=torch.bfloat16)
        y = _triton_norm.norm(x, None, weight, None, None, *options)[0]
        assert torch.equal(y[0], weight.bfloat16())
