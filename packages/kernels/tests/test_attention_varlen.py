"""Packed sequences of differing lengths, each for itself."""

import pytest
import torch
from attention_cases import PACKED, TOKENS, attend_by_loops, packed_by_loops, qkv
from kernel_checks import same

from drivetrain_kernels import (
    DeviceError,
    DtypeError,
    ImplementationError,
    IndexRangeError,
    OptionError,
    ShapeError,
    attention,
    explain,
)


def packed(heads=(4, 2)):
    return qkv(TOKENS, TOKENS, heads, batch=None)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 7, (3, 5)], ids=str)
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("impl", ["blocked", "reference"])
def test_attention_varlen_keeps_sequences_apart(causal, window, softcap, impl):
    if impl == "blocked" and window is None:
        return
    options = {"causal": causal, "window": window, "softcap": softcap}
    same(
        lambda *t: attention(*t, cu_seqlens_q=PACKED, impl=impl, **options),
        lambda *t: packed_by_loops(*t, **options),
        packed(),
    )


def test_attention_varlen_takes_other_lengths_of_keys():
    q, k, v = qkv(12, 20, batch=None)
    cu_q, cu_k = torch.tensor([0, 4, 12]), torch.tensor([0, 11, 20], dtype=torch.int32)

    def parts(q, k, v):
        first = attend_by_loops(q[None, :4], k[None, :11], v[None, :11], window=6)[0]
        second = attend_by_loops(q[None, 4:], k[None, 11:], v[None, 11:], window=6)[0]
        return torch.cat([first, second])

    same(
        lambda *t: attention(*t, window=6, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k),
        parts,
        [q, k, v],
    )


def test_attention_varlen_of_no_sequences_is_zero():
    q, k, v = (t.requires_grad_() for t in packed())
    for impl, window in (("reference", None), ("blocked", 4)):
        out = attention(
            q,
            k,
            v,
            window=window,
            cu_seqlens_q=torch.zeros(1, dtype=torch.int64),
            impl=impl,
        )
        assert torch.equal(out, torch.zeros_like(q))


def test_attention_varlen_compiles_without_a_break():
    def call(q, k, v, cu):
        return attention(q, k, v, window=4, cu_seqlens_q=cu)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    same(lambda *t: compiled(*t, PACKED), lambda *t: call(*t, PACKED), packed())


def test_attention_varlen_is_blocked_by_a_window_alone():
    q, k, v = qkv(512, 512, batch=None)
    cu = torch.tensor([0, 500])
    assert explain("attention", q, k, v, cu_seqlens_q=cu).implementation == "reference"
    told = explain("attention", q, k, v, cu_seqlens_q=cu, window=8)
    assert told.implementation == "blocked"
    other = explain(
        "attention", q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu.clone(), window=8
    )
    assert other.implementation == "reference"


def test_attention_varlen_refuses_what_does_not_fit():
    q, k, v = packed()
    calls = [
        (IndexRangeError, {"cu_seqlens_q": torch.tensor([1, 5])}),
        (IndexRangeError, {"cu_seqlens_q": torch.tensor([0, 5, 4])}),
        (IndexRangeError, {"cu_seqlens_q": torch.tensor([0, TOKENS + 1])}),
        (IndexRangeError, {"cu_seqlens_q": PACKED, "cu_seqlens_k": PACKED + 1}),
        (ShapeError, {"cu_seqlens_q": PACKED[None]}),
        (ShapeError, {"cu_seqlens_q": PACKED[:0]}),
        (ShapeError, {"cu_seqlens_q": PACKED, "cu_seqlens_k": PACKED[:3]}),
        (DtypeError, {"cu_seqlens_q": PACKED.float()}),
        (DeviceError, {"cu_seqlens_q": PACKED.to("meta")}),
        (OptionError, {"cu_seqlens_q": PACKED, "max_seqlen": 0}),
        (OptionError, {"cu_seqlens_q": PACKED, "max_seqlen": 1}),
        (ImplementationError, {"cu_seqlens_q": PACKED, "impl": "sdpa"}),
        (ImplementationError, {"cu_seqlens_q": PACKED, "impl": "blocked"}),
    ]
    for error, options in calls:
        with pytest.raises(error, match=r"^attention: "):
            attention(q, k, v, **options)
