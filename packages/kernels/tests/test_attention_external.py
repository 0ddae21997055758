"""Kernels of others: when they are taken, and how they are called."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from attention_cases import PACKED, TOKENS, attend_by_loops, packed_by_loops, qkv
from kernel_checks import same

from drivetrain_kernels.ops import _attention_external as external
from drivetrain_kernels.ops._attention import OP, facts
from drivetrain_kernels.ops._attention_band import Band, Packed, resolve_band
from drivetrain_kernels.ops._attention_options import AttentionOptions
from drivetrain_kernels.ops._attention_plain import reference_attention

SCALE = 8**-0.5
OPTIONS = [
    {"causal": True},
    {"causal": True, "window": 3},
    {"causal": False},
    {"causal": False, "window": (2, 1)},
]


def on_cuda(dtype=torch.bfloat16, **options):
    """What is known of a call on a GPU."""
    q, k, v = qkv(256, 256, batch=1)
    return replace(facts(q, k, v, **options), device="cuda", dtype=dtype)


def band_of(window_size):
    left, right = (None if side in {-1, None} else side for side in window_size)
    return Band(left=left, right=right)


def varlen_attn(
    q, k, v, cu_q, cu_k, max_q, max_k, *, scale, window_size, enable_gqa=False
):
    """What torch's function does, in plain operators."""
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert max_q == max_k >= int(cu_k.diff().max())
    assert enable_gqa == (q.shape[1] != k.shape[1])
    packed = Packed(cu_q, cu_k, max_q, False)
    given = AttentionOptions(band=band_of(window_size), scale=scale, packed=packed)
    return reference_attention(q, k, v, given)


def old_varlen_attn(q, k, v, cu_q, cu_k, max_q, max_k, *, scale, window_size):
    """What torch's function does where it knows nothing of shared keys."""
    options = {"scale": scale, "window_size": window_size}
    return varlen_attn(q, k, v, cu_q, cu_k, max_q, max_k, **options)


VARLEN = {"varlen": varlen_attn, "old varlen": old_varlen_attn}


def flash_library(returns_pair):
    """What FlashAttention does, in plain operators."""

    def plain(q, k, v, packed, options):
        band = band_of(options["window_size"])
        assert options["causal"] == (band.right == 0)
        assert options["deterministic"] is False
        given = AttentionOptions(
            band=band,
            scale=options["softmax_scale"],
            softcap=options["softcap"] or None,
            packed=packed,
        )
        out = reference_attention(q, k, v, given)
        return (out, None) if returns_pair else out

    def flash_attn_func(q, k, v, **options):
        return plain(q, k, v, None, options)

    def flash_attn_varlen_func(q, k, v, *, cu_seqlens_q, cu_seqlens_k, **options):
        assert options["max_seqlen_q"] == options["max_seqlen_k"]
        packed = Packed(cu_seqlens_q, cu_seqlens_k, options["max_seqlen_q"], False)
        return plain(q, k, v, packed, options)

    return SimpleNamespace(
        flash_attn_func=flash_attn_func, flash_attn_varlen_func=flash_attn_varlen_func
    )


@pytest.fixture(
    params=[*VARLEN, "flash_attn", "flash_attn_interface", "flash_attn.cute"]
)
def foreign(request, monkeypatch):
    """An implementation that stands on a library which is not here."""
    if request.param in VARLEN:
        function = VARLEN[request.param]
        monkeypatch.setattr(external, "_varlen_attn", lambda: function)
        return external.varlen_attention
    library = flash_library(returns_pair=request.param != "flash_attn")
    monkeypatch.setattr(external, "_flash_module", lambda: request.param)
    monkeypatch.setattr(external.importlib, "import_module", lambda name: library)
    return external.flash_attention


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_attention_external_is_called_rightly_for_a_batch(foreign, options):
    band = resolve_band(options["causal"], options.get("window"))
    same(
        lambda *t: foreign(*t, AttentionOptions(band=band, scale=SCALE)),
        lambda *t: attend_by_loops(*t, **options),
        qkv(9, 12, (4, 2)),
    )


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_attention_external_is_called_rightly_for_packed_sequences(foreign, options):
    band = resolve_band(options["causal"], options.get("window"))
    packed = Packed(PACKED, PACKED, TOKENS, True)
    given = AttentionOptions(band=band, scale=SCALE, packed=packed)
    same(
        lambda *t: foreign(*t, given),
        lambda *t: packed_by_loops(*t, **options),
        qkv(TOKENS, TOKENS, (4, 2), batch=None),
    )


@pytest.fixture
def hopper(monkeypatch):
    """Makes calls on CUDA tensors those of a GPU that is there."""
    monkeypatch.setattr(
        "drivetrain_kernels.ops._attention.capability_of",
        lambda device: (9, 0) if device == "cuda" else (0, 0),
    )


@pytest.mark.usefixtures("hopper")
def test_attention_external_is_taken_where_it_is_there(monkeypatch):
    monkeypatch.setattr(
        "drivetrain_kernels.ops._attention.varlen_missing", lambda: None
    )
    monkeypatch.setattr(
        "drivetrain_kernels.ops._attention.triton_missing", lambda _: None
    )
    assert OP.choose(on_cuda(window=16)).implementation.name == "varlen"
    # Measured on an H200: 13.7 ms against 7.2.
    assert OP.choose(on_cuda()).implementation.name == "sdpa"
    # Without tensor cores the kernels' tiles do not fit the registers.
    wide = OP.choose(on_cuda(torch.float32, window=16))
    assert wide.implementation.name != "triton"
    assert "float32" in dict(wide.passed_over)["triton"]
    monkeypatch.setattr("drivetrain_kernels.ops._attention.flash_missing", lambda: None)
    assert OP.choose(on_cuda()).implementation.name == "flash"


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (on_cuda(torch.float32), "needs bfloat16 or float16, got torch.float32"),
        (on_cuda(dropout_p=0.5), "dropout"),
        (replace(on_cuda(), head_dim=20), "that 8 divides, got 20"),
        (replace(on_cuda(), num_keys=0), "needs a query and a key"),
        (replace(on_cuda(), device="cpu"), "needs a CUDA tensor, got cpu"),
    ],
)
@pytest.mark.usefixtures("hopper")
def test_attention_external_is_refused_with_a_reason(call, why, monkeypatch):
    monkeypatch.setattr(
        "drivetrain_kernels.ops._attention.varlen_missing", lambda: None
    )
    monkeypatch.setattr("drivetrain_kernels.ops._attention.flash_missing", lambda: None)
    monkeypatch.setattr(
        "drivetrain_kernels.ops._attention.triton_missing", lambda _: None
    )
    passed = dict(OP.choose(call, "auto").passed_over)
    assert why in passed["flash"]
    assert why in passed["varlen"]


def test_attention_external_names_what_is_missing(monkeypatch):
    missing = external.varlen_missing.__wrapped__
    while hasattr(missing, "__wrapped__"):
        missing = missing.__wrapped__
    monkeypatch.setattr(external, "torch_function_missing", lambda _: None)
    monkeypatch.setattr(
        external, "_varlen_attn", lambda: lambda q, k, v, *, scale: None
    )
    assert missing().endswith("has a varlen_attn without window_size")
    monkeypatch.setattr(external, "_flash_module", lambda: None)
    flash = external.flash_missing
    while hasattr(flash, "__wrapped__"):
        flash = flash.__wrapped__
    assert flash() == "no FlashAttention for this GPU is installed"
