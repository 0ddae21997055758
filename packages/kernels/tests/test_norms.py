"""RMSNorm and LayerNorm, alone and after an addition or dropout, on torch's operators."""

import pytest
import torch
from kernel_checks import as_exact_as, normal, outcome, same
from torch.nn import functional

from drivetrain_kernels import (
    DeviceError,
    DtypeError,
    OptionError,
    ShapeError,
    add_rms_norm,
    dropout_add_rms_norm,
    explain,
    layer_norm,
    rms_norm,
)

CASTS = ["input", "float32"]


def llama(x, w, eps=1e-6):
    """As Hugging Face's LlamaRMSNorm has it."""
    wide = x.float() if x.dtype != torch.float64 else x
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return w * normed.to(x.dtype)


def gemma(x, w, eps=1e-6):
    """As Hugging Face's GemmaRMSNorm has it."""
    wide = x.float() if x.dtype != torch.float64 else x
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (normed * (1 + w.to(wide.dtype))).to(x.dtype)


def exact(x, w):
    return functional.rms_norm(x, x.shape[-1:], w, 1e-6)


@pytest.mark.parametrize("impl", ["reference", "auto", "eager"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 3, 123), (0, 4)])
def test_rms_norm_equals_torch_in_float64(impl, shape):
    same(
        lambda x, w: rms_norm(x, w, impl=impl),
        lambda x, w: functional.rms_norm(x, x.shape[-1:], w, 1e-6),
        normal(shape, shape[-1:]),
        rtol=1e-12,
        atol=1e-13,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_has_the_bits_of_llama_and_gemma(dtype):
    tensors = normal((4, 33), (33,), dtype=dtype)
    same(lambda x, w: rms_norm(x, w, impl="reference"), llama, tensors, rtol=0, atol=0)
    same(
        lambda x, w: rms_norm(x, w, offset=1.0, cast="float32", impl="reference"),
        gemma,
        tensors,
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("cast", CASTS)
def test_rms_norm_is_as_exact_as_the_plain_path_in_bfloat16(cast):
    tensors = normal((16, 256), (256,))
    as_exact_as(lambda x, w: rms_norm(x, w, cast=cast), llama, exact, tensors)


@pytest.mark.parametrize("weights", [0, 1, 2])
def test_layer_norm_equals_torch_in_float64(weights):
    same(
        lambda x, *wb: layer_norm(x, *wb, impl="reference"),
        lambda x, *wb: functional.layer_norm(x, x.shape[-1:], *wb),
        normal((3, 7), *[(7,)] * weights),
        rtol=1e-11,
        atol=1e-12,
    )


def test_layer_norm_is_as_exact_as_the_plain_path_in_bfloat16():
    def plain(x, w, b):
        return functional.layer_norm(x, x.shape[-1:], w, b)

    tensors = normal((16, 256), (256,), (256,))
    for impl in ("auto", "reference"):
        as_exact_as(
            lambda x, w, b, i=impl: layer_norm(x, w, b, impl=i), plain, plain, tensors
        )


@pytest.mark.parametrize("impl", ["reference", "torch", "eager"])
def test_add_rms_norm_is_a_sum_and_its_norm(impl):
    same(
        lambda x, r, w: add_rms_norm(x, r, w, impl=impl),
        lambda x, r, w: (exact(x + r, w), x + r),
        normal((3, 9), (3, 9), (9,)),
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_add_rms_norm_drops_a_share_and_scales_the_rest(p):
    x, r = torch.ones(40, 50), torch.zeros(40, 50)
    normed, total = dropout_add_rms_norm(x, r, p=p, seed=3)
    dropped = (total == 0).float().mean().item()
    assert dropped == p if p in {0.0, 1.0} else abs(dropped - p) < 0.05
    kept = total[total != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p) if p < 1 else 0))
    torch.testing.assert_close(normed, rms_norm(total))


def test_dropout_add_rms_norm_follows_from_the_seed_alone():
    x, r = normal((6, 10), (6, 10))

    def total(**options):
        return dropout_add_rms_norm(x, r, p=0.5, **options)[1]

    assert torch.equal(total(seed=5), total(seed=torch.tensor(5)))
    assert not torch.equal(total(seed=5), total(seed=6))
    one, other = (torch.Generator().manual_seed(1) for _ in range(2))
    assert torch.equal(total(generator=one), total(generator=other))
    assert not torch.equal(total(), total())
    torch.manual_seed(2)
    drawn = total()
    torch.manual_seed(2)
    assert torch.equal(drawn, total())


def test_dropout_add_rms_norm_does_not_drop_in_evaluation():
    x, r, w = normal((4, 6), (4, 6), (6,))
    found = dropout_add_rms_norm(x, r, w, p=0.5, training=False)
    for one, other in zip(found, add_rms_norm(x, r, w), strict=True):
        assert torch.equal(one, other)


def test_dropout_mask_reaches_the_gradient():
    x, r = torch.ones(5, 8, requires_grad=True), torch.zeros(5, 8)
    _, total = dropout_add_rms_norm(x, r, p=0.5, seed=1)
    total.sum().backward()
    assert torch.equal(x.grad, total.detach())


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: rms_norm(x, w, offset=1.0, impl="reference"),
        lambda x, w: rms_norm(x, w, offset=1.0, impl="eager"),
        lambda x, w: layer_norm(x, w, w, impl="reference"),
        lambda x, w: add_rms_norm(x, 2 * x, w, impl="reference"),
        lambda x, w: dropout_add_rms_norm(x, x, w, p=0.5, seed=1, impl="reference"),
    ],
    ids=["rms_norm", "eager", "layer_norm", "add", "dropout"],
)
def test_norms_have_right_gradients(call):
    tensors = [t.requires_grad_() for t in normal((2, 5), (5,))]
    assert torch.autograd.gradcheck(call, tensors)


def test_rms_norm_by_eager_has_a_second_derivative():
    tensors = [t.requires_grad_() for t in normal((2, 5), (5,))]
    assert torch.autograd.gradgradcheck(
        lambda x, w: rms_norm(x, w, impl="eager"), tensors
    )


def test_rms_norm_by_eager_is_as_exact_as_torch_in_float32():
    def eager(x, w):
        return rms_norm(x, w, impl="eager")

    as_exact_as(eager, exact, exact, normal((512, 256), (256,)), torch.float32)


def test_rms_norm_takes_eager_for_large_rows_on_a_cpu():
    assert explain(rms_norm, torch.empty(512, 256)).implementation == "eager"
    assert explain(rms_norm, torch.empty(511, 256)).implementation == "torch"
    narrow = torch.empty(512, 256, dtype=torch.bfloat16)
    assert explain(rms_norm, narrow).implementation == "torch"


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5), (3, 0)])
def test_norms_take_no_rows(shape):
    tensors = normal(shape, shape[-1:])
    for call in (
        lambda x, w: rms_norm(x, w, impl="reference"),
        lambda x, w: layer_norm(x, w, impl="reference"),
        lambda x, w: add_rms_norm(x, x, w, impl="reference"),
        lambda x, w: dropout_add_rms_norm(x, x, w, p=0.5, impl="reference"),
    ):
        found = outcome(call, tensors)
        assert found[0].shape == shape
        assert found[-1].shape == shape[-1:]
        assert not found[-1].any()


def test_norms_take_strided_rows():
    (wide,) = normal((4, 6, 10))
    for x in (wide[:, ::2], wide[..., 3:8], wide.transpose(1, 2)):
        torch.testing.assert_close(rms_norm(x), rms_norm(x.contiguous()))


def test_norms_take_float32_weights_beside_narrow_rows():
    x, w = normal((4, 8), (8,), dtype=torch.float32)
    found = rms_norm(x.bfloat16(), w)
    assert found.dtype == torch.bfloat16
    assert layer_norm(x.bfloat16(), w, w).dtype == torch.bfloat16
    as_float = rms_norm(x.bfloat16().float(), w)
    torch.testing.assert_close(found.float(), as_float, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (
            ShapeError,
            "weight must have the shape",
            lambda x: rms_norm(x, torch.ones(4)),
        ),
        (ShapeError, "residual must have", lambda x: add_rms_norm(x, x[:1])),
        (ShapeError, "at least one dimension", lambda x: rms_norm(x[0, 0])),
        (DtypeError, "weight must have", lambda x: rms_norm(x, x[0].half())),
        (DtypeError, "x must be float64", lambda x: layer_norm(x.int())),
        (DtypeError, "x must be a tensor, got list", lambda x: rms_norm([1.0])),
        (DeviceError, "weight must be on", lambda x: rms_norm(x, x[0].to("meta"))),
        (OptionError, "eps must be >= 0", lambda x: layer_norm(x, eps=-1.0)),
        (OptionError, "cast must be one", lambda x: rms_norm(x, cast="bf16")),
        (OptionError, "p must be from", lambda x: dropout_add_rms_norm(x, x, p=1.5)),
        (
            DtypeError,
            "seed must be int64",
            lambda x: dropout_add_rms_norm(x, x, seed=torch.tensor(1.0)),
        ),
        (
            OptionError,
            "a seed or a generator",
            lambda x: dropout_add_rms_norm(x, x, seed=1, generator=torch.Generator()),
        ),
    ],
)
def test_norms_refuse_what_does_not_fit(error, message, call):
    with pytest.raises(error, match=message):
        call(torch.ones(3, 5))


@pytest.mark.slow
def test_compiled_form_is_compiled_and_gives_the_same():
    tensors = normal((5, 16), (16,), dtype=torch.float32)
    same(
        lambda x, w: rms_norm(x, w, impl="compiled"),
        lambda x, w: rms_norm(x, w, impl="reference"),
        tensors,
    )


@pytest.mark.slow
def test_norms_compile_without_a_break():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x, r, w):
        normed, total = add_rms_norm(x, r, w)
        return layer_norm(rms_norm(normed, w) + total, w, w)

    x, r, w = normal((3, 8), (3, 8), (8,))
    assert step(x, r, w).shape == (3, 8)


@pytest.mark.parametrize("impl", ["eager", "torch", "reference"])
def test_rms_norm_takes_one_row_alone(impl):
    same(
        lambda x, w: rms_norm(x, w, impl=impl),
        lambda x, w: rms_norm(x[None], w, impl="reference")[0],
        normal((9,), (9,)),
    )


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (OptionError, "eps must be a number, got None", {"eps": None}),
        (OptionError, "offset must be a number, got 'x'", {"offset": "x"}),
        (OptionError, "p must be a number, got None", {"p": None}),
        (OptionError, "seed must be a whole number, got 1.5", {"seed": 1.5}),
        (OptionError, "seed must fit into 64 bits", {"seed": 2**63}),
        (DtypeError, "weight must be a tensor, got str", {"weight": "x"}),
    ],
    ids=str,
)
def test_dropout_add_rms_norm_refuses_other_kinds_of_values(error, message, options):
    x = torch.ones(2, 4)
    with pytest.raises(error, match=message):
        dropout_add_rms_norm(x, x, **options)


@pytest.mark.parametrize("op", [add_rms_norm, dropout_add_rms_norm])
def test_norms_with_a_sum_need_a_residual(op):
    with pytest.raises(DtypeError, match="residual must be a tensor, got NoneType"):
        op(torch.ones(2, 4), None)
