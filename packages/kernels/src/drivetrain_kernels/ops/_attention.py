"""Scaled dot-product attention: causal, windowed, grouped, and of packed sequences.

Vaswani et al. 2017, equation 1, https://arxiv.org/abs/1706.03762; grouped queries by
Ainslie et al. 2023, https://arxiv.org/abs/2305.13245; sliding windows by Beltagy et al.
2020, section 3.1, https://arxiv.org/abs/2004.05150.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drivetrain_kernels._available import (
    capability_of,
    second_derivative,
    transforms_active,
    triton_missing,
)
from drivetrain_kernels._check import (
    check_at_least,
    check_device,
    check_floating,
    check_integer,
    check_like,
    check_number,
    check_positive,
    check_shape,
    check_whole,
    is_distributed,
)
from drivetrain_kernels._dispatch import Example, Implementation, Op, reference_form
from drivetrain_kernels._errors import IndexRangeError, OptionError, ShapeError
from drivetrain_kernels._fast_path import is_readable
from drivetrain_kernels.ops._attention_band import Band, Packed, resolve_band
from drivetrain_kernels.ops._attention_external import (
    flash_attention,
    flash_missing,
    sdpa_attention,
    varlen_attention,
    varlen_missing,
)
from drivetrain_kernels.ops._attention_options import AttentionOptions
from drivetrain_kernels.ops._attention_plain import (
    block_size,
    blocked_attention,
    reference_attention,
)

OP_NAME = "attention"
MAX_TRITON_HEAD = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionFacts:
    """What the choice of an implementation depends on."""

    device: str
    dtype: torch.dtype
    num_queries: int
    num_keys: int
    head_dim: int
    band: Band
    is_packed: bool
    is_self: bool
    softcap: float | None
    dropout_p: float
    is_distributed: bool


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | tuple[int | None, int | None] | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    impl: str = "auto",
) -> Tensor:
    """Returns softmax(scale q k^T) v, over the keys that each query sees.

    Where there are more or fewer queries than keys, the last of both are at the same
    position. A query that sees no key gets zeros. With fewer heads of keys and values than
    of queries, consecutive queries' heads share one.

    Shapes: B batch, Sq and Sk positions, Hq and Hk heads, D head dimension; for packed
    sequences Tq and Tk are the tokens of all of them.

    Args:
        q: Queries, [B, Sq, Hq, D]; packed: [Tq, Hq, D].
        k: Keys, [B, Sk, Hk, D]; packed: [Tk, Hk, D].
        v: Values, of the shape of the keys.
        causal: Whether a query sees no key behind its position.
        window: How many positions back a query sees, itself among them, and as many
            ahead if not `causal`; or (left, right), how many beside itself it sees on
            either side, None for no bound.
        cu_seqlens_q: Where each packed sequence's queries start, and where the last
            one ends; [num_sequences + 1], int32 or int64, from 0, never falling.
        cu_seqlens_k: Likewise for keys; those of the queries if left out.
        max_seqlen: At least the length of the longest packed sequence; by default the
            number of tokens, since looking for it would wait for the device. Kernels
            of a GPU are faster with the true one.
        scale: Multiplies the scores; by default D^-1/2.
        softcap: Caps the scores smoothly to within plus and minus this.
        dropout_p: The share of the probabilities that is dropped; 0 in evaluation.
        impl: "auto", or "flash", "varlen", "triton", "blocked", "sdpa", "reference".

    Raises:
        ShapeError: Shapes do not fit, or the heads of the keys do not divide those of
            the queries.
        DtypeError: A dtype does not fit.
        DeviceError: Tensors lie on different devices.
        OptionError: An option has a value that is not allowed.
        IndexRangeError: cu_seqlens do not rise from 0; on a CPU.
        ImplementationError: The implementation that was named cannot take the call.

    Example:
        >>> import torch
        >>> q = torch.zeros(1, 4, 2, 8)
        >>> v = torch.arange(4.0).view(1, 4, 1, 1).expand(1, 4, 2, 8)
        >>> attention(q, q, v, window=2)[0, :, 0, 0]
        tensor([0.0000, 0.5000, 1.5000, 2.5000])
    """
    band = resolve_band(causal, window)
    packed = _packed(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen)
    found = _facts(q, k, v, band, packed, softcap, dropout_p)
    if scale is not None:
        check_positive(OP_NAME, "scale", scale)
    options = AttentionOptions(
        band=band,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        softcap=softcap,
        dropout_p=dropout_p,
        packed=packed,
    )
    if q.shape[0] == 0:
        OP.choose(found, impl)  # raises if the one that was named cannot take the call
        return q * 0.0
    hidden_rows = 0 if packed is not None else _blind_rows(found)
    if hidden_rows == 0:
        out: Tensor = OP.run(found, impl, q, k, v, options)
        return out
    OP.choose(found, impl)  # raises if the one that was named cannot take the call
    blind = q[:, :hidden_rows] * 0.0
    if hidden_rows == q.shape[1]:
        return blind
    rest = q[:, hidden_rows:]
    out = OP.run(found, impl, rest, k, v, options)
    return torch.cat([blind, out], dim=1)


def _blind_rows(call: AttentionFacts) -> int:
    """Returns how many of the first queries see no key."""
    if call.num_keys == 0:
        return call.num_queries
    if call.band.right is None:
        return 0
    ahead = call.num_queries - call.num_keys - call.band.right
    return min(call.num_queries, max(0, ahead))


def _packed(
    q: Tensor,
    k: Tensor,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    max_seqlen: int | None,
) -> Packed | None:
    if cu_q is None:
        if cu_k is not None or max_seqlen is not None:
            message = (
                f"{OP_NAME}: cu_seqlens_k and max_seqlen are for packed sequences, "
                "which need cu_seqlens_q, got None"
            )
            raise OptionError(message)
        return None
    for name, tensor in (("q", q), ("k", k)):
        check_floating(OP_NAME, name, tensor)
    is_self = cu_k is None or cu_k is cu_q
    cu_k = cu_q if cu_k is None else cu_k
    for name, cu, tokens in (("cu_seqlens_q", cu_q, q), ("cu_seqlens_k", cu_k, k)):
        _check_offsets(name, cu, tokens)
    check_shape(OP_NAME, "cu_seqlens_k", cu_k, cu_q.shape)
    if max_seqlen is not None:
        check_whole(OP_NAME, "max_seqlen", max_seqlen)
        check_at_least(OP_NAME, "max_seqlen", max_seqlen, 1)
        _check_longest(max_seqlen, cu_q, cu_k)
    longest = max(1, q.shape[0], k.shape[0]) if max_seqlen is None else max_seqlen
    return Packed(cu_q, cu_k, longest, is_self)


def _check_longest(max_seqlen: int, *offsets: Tensor) -> None:
    """Checks lengths that lie in the memory of the host, where reading them is free."""
    here = [cu for cu in offsets if is_readable(cu) and len(cu) > 1]
    longest = max((int(cu.diff().max()) for cu in here), default=0)
    if max_seqlen < longest:
        message = (
            f"{OP_NAME}: max_seqlen must be at least the length of the longest "
            f"sequence, {longest}, got {max_seqlen}"
        )
        raise OptionError(message)


def _check_offsets(name: str, cu: Tensor, tokens: Tensor) -> None:
    check_integer(OP_NAME, name, cu)
    if cu.dim() != 1 or len(cu) < 1:
        message = (
            f"{OP_NAME}: {name} must have the shape [num_sequences + 1], got "
            f"{tuple(cu.shape)}"
        )
        raise ShapeError(message)
    check_device(OP_NAME, name, cu, ("the tokens", tokens))
    if not is_readable(cu) or tokens.dim() != 3:
        return  # the layout of the tokens is checked with the others'
    if int(cu[0]) != 0 or bool((cu.diff() < 0).any()) or int(cu[-1]) > len(tokens):
        message = (
            f"{OP_NAME}: {name} must start with 0, never fall, and end within the "
            f"{len(tokens)} tokens, got {cu.tolist()}"
        )
        raise IndexRangeError(message)


def _facts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    band: Band,
    packed: Packed | None,
    softcap: float | None,
    dropout_p: float,
) -> AttentionFacts:
    check_floating(OP_NAME, "q", q)
    check_floating(OP_NAME, "k", k)
    check_floating(OP_NAME, "v", v)
    check_like(OP_NAME, ("q", q), ("k", k), ("v", v))
    dims = 4 if packed is None else 3
    leading = "batch, sequence" if packed is None else "tokens"
    if not q.dim() == k.dim() == dims:
        message = (
            f"{OP_NAME}: q and k must have the layout [{leading}, heads, head_dim], "
            f"got {tuple(q.shape)} and {tuple(k.shape)}"
        )
        raise ShapeError(message)
    check_shape(OP_NAME, "v", v, k.shape)
    check_shape(OP_NAME, "k", k, (*q.shape[:-3], *k.shape[-3:-1], q.shape[-1]))
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        message = (
            f"{OP_NAME}: the heads of q must be a multiple of those of k and v, got "
            f"{q.shape[-2]} and {k.shape[-2]}"
        )
        raise ShapeError(message)
    if softcap is not None:
        check_positive(OP_NAME, "softcap", softcap)
    check_number(OP_NAME, "dropout_p", dropout_p)
    if not 0.0 <= dropout_p < 1.0:
        message = f"{OP_NAME}: dropout_p must be >= 0 and < 1, got {dropout_p}"
        raise OptionError(message)
    return AttentionFacts(
        device=q.device.type,
        dtype=q.dtype,
        num_queries=q.shape[-3],
        num_keys=k.shape[-3],
        head_dim=q.shape[-1],
        band=band,
        is_packed=packed is not None,
        is_self=packed is not None and packed.is_self,
        softcap=softcap,
        dropout_p=dropout_p,
        is_distributed=is_distributed(q),
    )


def facts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | tuple[int | None, int | None] | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
) -> AttentionFacts:
    """Checks a call and returns what the choice depends on.

    Args:
        q: See `attention`.
        k: Likewise.
        v: Likewise.
        causal: Likewise.
        window: Likewise.
        cu_seqlens_q: Likewise.
        cu_seqlens_k: Likewise.
        max_seqlen: Likewise.
        scale: Likewise.
        softcap: Likewise.
        dropout_p: Likewise.
    """
    if scale is not None:
        check_positive(OP_NAME, "scale", scale)
    packed = _packed(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen)
    return _facts(q, k, v, resolve_band(causal, window), packed, softcap, dropout_p)


def _triton(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
    # Importing the kernels imports Triton, which only those need who chose them.
    from drivetrain_kernels.ops._triton_attention import triton_attention

    return triton_attention(q, k, v, options)


def _refuse_half_gpu(call: AttentionFacts) -> str | None:
    if capability_of(call.device) == (0, 0):
        return f"needs a CUDA tensor, got {call.device}"
    if call.dtype not in {torch.bfloat16, torch.float16}:
        return f"needs bfloat16 or float16, got {call.dtype}"
    if call.head_dim > 256 or call.head_dim % 8:
        return f"needs a head_dim of at most 256 that 8 divides, got {call.head_dim}"
    if call.num_queries == 0 or call.num_keys == 0:
        return "needs a query and a key"
    transformed: str | None = transforms_active()
    return transformed


def _refuse_flash(call: AttentionFacts) -> str | None:
    missing = _refuse_half_gpu(call) or flash_missing()
    if missing is None and call.dropout_p:
        return "is not taken with dropout, which its newer kernels lack"
    return missing


def _refuse_varlen(call: AttentionFacts) -> str | None:
    missing = _refuse_half_gpu(call) or varlen_missing()
    if missing is not None:
        return missing
    if call.softcap is not None:
        return "has no soft cap"
    return "has no dropout" if call.dropout_p else None


def _varlen_automatic(call: AttentionFacts) -> str | None:
    if call.is_packed or call.softcap is not None:
        return None
    is_square = call.num_queries == call.num_keys
    if call.band.is_full or (call.band.is_causal and is_square):
        return "is slower than 'sdpa' where that needs no mask"
    return None


def _refuse_triton(call: AttentionFacts) -> str | None:
    missing: str | None = triton_missing(call.device)
    if missing is not None:
        return missing
    if call.device != "cpu" and call.dtype == torch.float64:
        return "needs float32 or narrower on a GPU, got torch.float64"
    if call.head_dim > MAX_TRITON_HEAD:
        return f"needs a head_dim of at most {MAX_TRITON_HEAD}, got {call.head_dim}"
    return "has no dropout" if call.dropout_p else None


def _triton_automatic(call: AttentionFacts) -> str | None:
    if call.device == "cpu":
        return "is only interpreted on a CPU"
    if call.dtype == torch.float32:
        return "is slow in float32, whose products take no tensor core"
    if call.band.left is None and not call.is_packed and call.softcap is None:
        return "is slower than 'sdpa' without a window"
    return None


def _refuse_blocked(call: AttentionFacts) -> str | None:
    if call.is_distributed:
        return "takes no DTensor"
    if call.band.left is None or call.band.right is None:
        return "needs a window with a bound on both sides"
    if call.is_packed and not call.is_self:
        return "needs packed queries and keys of the same tokens"
    derivative: str | None = second_derivative()
    return derivative


def _blocked_automatic(call: AttentionFacts) -> str | None:
    assert call.band.left is not None
    assert call.band.right is not None
    window = call.band.left + call.band.right + 1
    if call.num_keys < 2 * (window + block_size(window)):
        return f"saves little with a window of {window} in {call.num_keys} keys"
    return None


def _refuse_sdpa(call: AttentionFacts) -> str | None:
    if call.is_packed:
        return "takes no packed sequences"
    if call.is_distributed and call.device == "cpu":
        return "has no rule for a DTensor on a CPU"
    if call.softcap is not None:
        return "has no soft cap"
    derivative: str | None = second_derivative()
    return derivative


def _example(device: torch.device, dtype: torch.dtype) -> Example:
    q = torch.randn(1, 8, 4, 16, device=device, dtype=dtype)
    k = torch.randn(1, 8, 2, 16, device=device, dtype=dtype)
    return (q, k, k), {}


OP: Op[AttentionFacts] = Op(
    name=OP_NAME,
    implementations=(
        Implementation(
            name="flash",
            call=flash_attention,
            refuse=_refuse_flash,
            because="FlashAttention is the fastest on this GPU",
        ),
        Implementation(
            name="varlen",
            call=varlen_attention,
            refuse=_refuse_varlen,
            automatic=_varlen_automatic,
            because="torch's FlashAttention skips what lies outside the window",
        ),
        Implementation(
            name="triton",
            call=_triton,
            refuse=_refuse_triton,
            automatic=_triton_automatic,
            because="it skips the keys outside the window, and keeps no scores",
        ),
        Implementation(
            name="blocked",
            call=blocked_attention,
            refuse=_refuse_blocked,
            automatic=_blocked_automatic,
            because="its cost grows with the window, not with the sequence",
        ),
        Implementation(
            name="sdpa",
            call=sdpa_attention,
            refuse=_refuse_sdpa,
            because="torch's fused attention has all that was asked for",
        ),
        reference_form(reference_attention, "it takes every call, on any device"),
    ),
    facts=facts,
    example=_example,
)
