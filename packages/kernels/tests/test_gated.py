"""SwiGLU and GEGLU on torch's operators."""

import pytest
import torch
from kernel_checks import as_exact_as, normal, outcome, same
from torch.nn import functional

from drivetrain_kernels import DtypeError, OptionError, ShapeError, geglu, swiglu

FORMS = {
    "silu": (swiglu, {}, functional.silu),
    "tanh": (geglu, {}, lambda g: functional.gelu(g, approximate="tanh")),
    "none": (geglu, {"approximate": "none"}, functional.gelu),
}


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("form", FORMS)
def test_gated_is_the_activation_times_up(form, impl):
    op, options, act = FORMS[form]
    same(
        lambda g, u: op(g, u, impl=impl, **options),
        lambda g, u: act(g) * u,
        normal((3, 7), (3, 7)),
        rtol=1e-12,
        atol=1e-13,
    )


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("form", FORMS)
def test_gated_is_as_exact_as_the_plain_path_in_bfloat16(form, impl):
    op, options, act = FORMS[form]

    def plain(g, u):
        return act(g) * u

    as_exact_as(
        lambda g, u: op(g, u, impl=impl, **options),
        plain,
        plain,
        normal((64, 65), (64, 65)),
    )


@pytest.mark.parametrize("form", FORMS)
def test_gated_has_right_gradients(form):
    op, options, _ = FORMS[form]
    tensors = [t.requires_grad_() for t in normal((2, 3), (2, 3))]
    assert torch.autograd.gradcheck(
        lambda g, u: op(g, u, impl="reference", **options), tensors
    )


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_gated_takes_any_shape(shape):
    for one in outcome(swiglu, normal(shape, shape)):
        assert one.shape == shape


def test_gated_takes_halves_of_one_tensor():
    (both,) = normal((4, 10))
    gate, up = both.chunk(2, -1)
    assert torch.equal(swiglu(gate, up), swiglu(gate.contiguous(), up.contiguous()))


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ShapeError, "^swiglu: up must have the shape", lambda x: swiglu(x, x[:1])),
        (DtypeError, "^geglu: up must have the dtype", lambda x: geglu(x, x.half())),
        (DtypeError, "^swiglu: gate must be", lambda x: swiglu(x.long(), x.long())),
        (DtypeError, "^geglu: up must be a tensor", lambda x: geglu(x, None)),
        (OptionError, "approximate must be", lambda x: geglu(x, x, approximate="erf")),
    ],
    ids=["shape", "dtype", "integer", "kind", "option"],
)
def test_gated_refuses_what_does_not_fit(error, message, call):
    with pytest.raises(error, match=message):
        call(torch.ones(2, 3))
