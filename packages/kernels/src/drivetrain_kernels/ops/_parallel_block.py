"""The parallel block: attention and MLP side by side, on one norm.

    y = x + Attn(N(x)) + MLP(N(x))

With both reading the same rows, queries, keys, values, gate and up come of one GEMM, and
both results go back in one GEMM, whose sum over its inner width is the sum of the two.
Wang and Komatsuzaki, GPT-J, 2021; Jiang et al., MegaScale, 2024, section 3.1:
https://arxiv.org/abs/2402.15627.

Shapes: B batch, S sequence, C channels, H and G heads of queries and of keys, D head
dim, F inner width of the MLP. The rows of `w_in` are H D of queries, G D of keys, G D of
values, F of the gate and F of up; the columns of `w_out` are H D of heads and F.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from drivetrain_kernels._check import (
    autocast_dtype,
    check_at_least,
    check_floating,
    check_like,
    check_one_of,
    check_shape,
    check_whole,
)
from drivetrain_kernels._dispatch import Example, Implementation, Op, reference_form
from drivetrain_kernels._errors import OptionError, ShapeError
from drivetrain_kernels.ops._attention import attention
from drivetrain_kernels.ops._geglu import geglu
from drivetrain_kernels.ops._layer_norm import layer_norm
from drivetrain_kernels.ops._rms_norm import rms_norm
from drivetrain_kernels.ops._rope import rope
from drivetrain_kernels.ops._swiglu import swiglu

if TYPE_CHECKING:
    from torch import Tensor

NORMS = ("rms", "layer")
ACTIVATIONS = {"swiglu": swiglu, "geglu": geglu}


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockFacts:
    """What the choice of an implementation depends on.

    Args:
        device: The type of the device.
        dtype: That of the tokens.
        num_tokens: How many there are.
    """

    device: str
    dtype: torch.dtype
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Form:
    """The block's options, and the widths of its parts."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    inner: int
    norm: str
    activation: str
    eps: float
    rope_base: float | None
    causal: bool
    window: int | None

    @property
    def widths(self) -> list[int]:
        """Of queries, keys, values, gate and up."""
        keys = self.num_kv_heads * self.head_dim
        return [self.num_heads * self.head_dim, keys, keys, self.inner, self.inner]


class _Weights(NamedTuple):
    """The block's parameters; see `parallel_block`."""

    norm: Tensor
    norm_bias: Tensor | None
    w_in: Tensor
    w_out: Tensor


def parallel_block(
    x: Tensor,
    norm_weight: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    norm: str = "rms",
    norm_bias: Tensor | None = None,
    activation: str = "swiglu",
    eps: float = 1e-6,
    rope_base: float | None = 10000.0,
    causal: bool = True,
    window: int | None = None,
    impl: str = "auto",
) -> Tensor:
    """Returns `x + Attn(N(x)) + MLP(N(x))`.

    Args:
        x: Tokens, `(B, S, C)`.
        norm_weight: `(C,)`.
        w_in: `(H D + 2 G D + 2 F, C)`: queries, keys, values, gate and up.
        w_out: `(C, H D + F)`: from the heads, and from the MLP.
        num_heads: Heads of queries, H.
        num_kv_heads: Heads of keys and values, G, a divisor of H; None for H.
        head_dim: D; None for C / H.
        norm: "rms" or "layer".
        norm_bias: `(C,)`, for "layer" only.
        activation: "swiglu" or "geglu".
        eps: The norm's.
        rope_base: The base of rotary embeddings; None for none.
        causal: See `attention`.
        window: Likewise.
        impl: "auto", or "fused" (two GEMMs), "accumulated" (three: each result is
            added by a GEMM of its own, which saves joining them) or "reference" (a
            GEMM for each part).

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        ShapeError: The shapes do not fit each other.
        DtypeError: A dtype is not floating-point, or they do not fit each other.
        OptionError: An option has no allowed value.
        ImplementationError: There is no such implementation.

    Example:
        >>> x = torch.randn(1, 5, 8)
        >>> w_in, w_out = torch.randn(3 * 8 + 2 * 16, 8), torch.randn(8, 8 + 16)
        >>> parallel_block(x, torch.ones(8), w_in, w_out, num_heads=2).shape
        torch.Size([1, 5, 8])
    """
    found, form = _checked(
        x,
        norm_weight,
        w_in,
        w_out,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm=norm,
        norm_bias=norm_bias,
        activation=activation,
        eps=eps,
        rope_base=rope_base,
        causal=causal,
        window=window,
    )
    weights = _Weights(norm_weight, norm_bias, w_in, w_out)
    return OP.run(found, impl, x, weights, form)  # type: ignore[no-any-return]


def facts(
    x: Tensor, norm_weight: Tensor, w_in: Tensor, w_out: Tensor, **options: Any
) -> BlockFacts:
    """Checks a call and returns what the choice depends on.

    Args:
        x: See `parallel_block`.
        norm_weight: Likewise.
        w_in: Likewise.
        w_out: Likewise.
        **options: Likewise.
    """
    return _checked(x, norm_weight, w_in, w_out, **options)[0]


def _checked(
    x: Tensor,
    norm_weight: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    norm: str = "rms",
    norm_bias: Tensor | None = None,
    activation: str = "swiglu",
    eps: float = 1e-6,
    rope_base: float | None = 10000.0,
    causal: bool = True,
    window: int | None = None,
) -> tuple[BlockFacts, _Form]:
    op = "parallel_block"
    given = {"x": x, "norm_weight": norm_weight, "w_in": w_in, "w_out": w_out}
    for name, tensor in given.items():
        check_floating(op, name, tensor)
    if x.dim() != 3 or w_out.dim() != 2:
        message = (
            f"{op}: x must be (batch, sequence, channels) and w_out (channels, inner), "
            f"got {tuple(x.shape)} and {tuple(w_out.shape)}"
        )
        raise ShapeError(message)
    if autocast_dtype(x.device) is None:
        check_like(op, ("x", x), ("w_in", w_in), ("w_out", w_out))
    check_one_of(op, "norm", norm, NORMS)
    check_one_of(op, "activation", activation, ACTIVATIONS)
    if norm_bias is not None and norm != "layer":
        message = f"{op}: norm_bias goes with norm='layer', got norm={norm!r}"
        raise OptionError(message)
    batch, sequence, channels = x.shape
    for name, number in (
        ("num_heads", num_heads),
        ("num_kv_heads", num_kv_heads),
        ("head_dim", head_dim),
    ):
        if number is not None:
            check_whole(op, name, number)
    if head_dim is not None:
        check_at_least(op, "head_dim", head_dim, 1)
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if num_heads < 1 or kv_heads < 1 or num_heads % kv_heads:
        message = (
            f"{op}: num_heads must be a multiple of num_kv_heads, got {num_heads} and "
            f"{kv_heads}"
        )
        raise OptionError(message)
    if head_dim is None:
        if channels % num_heads:
            message = (
                f"{op}: the {channels} channels must be a multiple of the {num_heads} "
                "heads, or give head_dim"
            )
            raise OptionError(message)
        head_dim = channels // num_heads
    form = _Form(
        num_heads=num_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        inner=w_out.shape[1] - num_heads * head_dim,
        norm=norm,
        activation=activation,
        eps=eps,
        rope_base=rope_base,
        causal=causal,
        window=window,
    )
    if form.inner < 1:
        message = (
            f"{op}: w_out must have more columns than the {num_heads * head_dim} of the "
            f"heads, got {w_out.shape[1]}"
        )
        raise ShapeError(message)
    check_shape(op, "w_out", w_out, (channels, w_out.shape[1]))
    check_shape(op, "w_in", w_in, (sum(form.widths), channels))
    check_shape(op, "norm_weight", norm_weight, (channels,))
    found = BlockFacts(device=x.device.type, dtype=x.dtype, num_tokens=batch * sequence)
    return found, form


def _normed(x: Tensor, weights: _Weights, form: _Form) -> Tensor:
    if form.norm == "rms":
        return rms_norm(x, weights.norm, eps=form.eps)
    return layer_norm(x, weights.norm, weights.norm_bias, eps=form.eps)


def _heads(q: Tensor, k: Tensor, v: Tensor, form: _Form) -> Tensor:
    """Returns what attention makes of queries, keys and values, heads side by side."""
    counts = (form.num_heads, form.num_kv_heads, form.num_kv_heads)
    q, k, v = (
        part.view(*part.shape[:-1], count, form.head_dim)
        for part, count in zip((q, k, v), counts, strict=True)
    )
    if form.rope_base is not None:
        q, k = rope(q, k, base=form.rope_base)
    out = attention(q, k, v, causal=form.causal, window=form.window)
    return out.flatten(-2)


def _parts(x: Tensor, weights: _Weights, form: _Form) -> tuple[Tensor, Tensor]:
    """Returns the results of attention and of the activation, after one GEMM."""
    joined = functional.linear(_normed(x, weights, form), weights.w_in)
    q, k, v, gate, up = joined.split_with_sizes(form.widths, -1)
    return _heads(q, k, v, form), ACTIVATIONS[form.activation](gate, up)


def _fused(x: Tensor, weights: _Weights, form: _Form) -> Tensor:
    both = torch.cat(_parts(x, weights, form), -1)
    return added_product(x, both, weights.w_out)


def added_product(x: Tensor, inner: Tensor, weight: Tensor) -> Tensor:
    """Returns `x + inner weight^T`, by one GEMM where all have one dtype.

    Args:
        x: Any shape, `(..., O)`.
        inner: `(..., I)`.
        weight: `(O, I)`.
    """
    if inner.dtype != x.dtype or inner.dtype != weight.dtype:
        # Autocast would round the sum that the product is added to.
        return x + functional.linear(inner, weight)
    rows = torch.addmm(x.flatten(0, 1), inner.flatten(0, 1), weight.t())
    return rows.view(x.shape)


def _accumulated(x: Tensor, weights: _Weights, form: _Form) -> Tensor:
    heads, hidden = _parts(x, weights, form)
    sizes = [heads.shape[-1], hidden.shape[-1]]
    w_heads, w_hidden = weights.w_out.split_with_sizes(sizes, 1)
    return added_product(added_product(x, heads, w_heads), hidden, w_hidden)


def _reference(x: Tensor, weights: _Weights, form: _Form) -> Tensor:
    normed = _normed(x, weights, form)
    q, k, v, gate, up = (
        functional.linear(normed, part)
        for part in weights.w_in.split_with_sizes(form.widths)
    )
    heads = _heads(q, k, v, form)
    hidden = ACTIVATIONS[form.activation](gate, up)
    sizes = [heads.shape[-1], hidden.shape[-1]]
    w_heads, w_hidden = weights.w_out.split_with_sizes(sizes, 1)
    return x + functional.linear(heads, w_heads) + functional.linear(hidden, w_hidden)


def _example(device: torch.device, dtype: torch.dtype) -> Example:
    shapes = ((2, 5, 8), (8,), (4 * 4 + 2 * 12, 8), (8, 8 + 12))
    tensors = tuple(torch.randn(s, device=device, dtype=dtype) for s in shapes)
    return tensors, {"num_heads": 2, "num_kv_heads": 1}


OP = Op(
    name="parallel_block",
    implementations=(
        Implementation(
            name="fused",
            call=_fused,
            because="one GEMM in, and one out that adds the residual as well",
        ),
        Implementation(
            name="accumulated",
            call=_accumulated,
            because="nothing is joined before the GEMMs out",
        ),
        reference_form(_reference),
    ),
    facts=facts,
    example=_example,
)
