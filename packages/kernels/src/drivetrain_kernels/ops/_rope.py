"""Rotary position embeddings of queries and keys.

Pairs of columns (x1, x2) are rotated by the angle of the token's position:

    y1 = x1 cos - x2 sin,  y2 = x2 cos + x1 sin

A pair is column i and i + R/2 (Llama), or 2i and 2i + 1 if interleaved (GPT-J); columns
from R on stay as they are. Su et al., RoFormer, 2021, equation 34:
https://arxiv.org/abs/2104.09864.

Shapes: B batch, S sequence, T packed tokens, H heads, D head dim, R rotated columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._available import triton_missing
from drivetrain_kernels._check import (
    check_floating,
    check_integer,
    check_like,
    check_positive,
    check_shape,
    check_whole,
    is_distributed,
    replicated_beside,
)
from drivetrain_kernels._compiled import compiled_form
from drivetrain_kernels._dispatch import Example, Op, reference_form, triton_form
from drivetrain_kernels._errors import (
    DeviceError,
    IndexRangeError,
    OptionError,
    ShapeError,
)
from drivetrain_kernels._fast_path import is_readable
from drivetrain_kernels.ops._rope_tables import (
    counted_tables,
    packed_positions,
    rope_tables,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeFacts:
    """What the choice of an implementation depends on.

    Args:
        device: The type of the device.
        dtype: That of queries and keys.
        rotary_dim: How many columns are rotated.
        tables_need_grad: Whether the angles are trained.
        distributed: Whether queries, keys or angles are DTensors.
    """

    device: str
    dtype: torch.dtype
    rotary_dim: int
    tables_need_grad: bool
    distributed: bool


def rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    *,
    positions: Tensor | None = None,
    base: float = 10000.0,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    cu_seqlens: Tensor | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Returns queries and keys with their pairs of columns rotated.

    Args:
        q: `(B, S, H, D)`, or `(T, H, D)` for packed sequences.
        k: Likewise, its number of heads may be another one.
        cos: `(S, R/2)`, or with the batch or the packed tokens in front; one row for
            each token, or for each position if `positions` or `cu_seqlens` is given.
            None computes cosine and sine from the positions.
        sin: Of the shape of `cos`.
        positions: Integers, `(S,)`, `(B, S)` or `(T,)`; None counts from 0, in each
            sequence of its own if `cu_seqlens` is given.
        base: What the frequencies are powers of, if they are computed here.
        interleaved: Whether neighbouring columns are a pair.
        rotary_dim: How many columns are rotated, from the first; None for all.
        cu_seqlens: Where packed sequences begin, and where the last ends.
        impl: "auto", or "triton", "compiled" or "reference".

    Returns:
        Queries and keys, of their shapes and dtype.

    Raises:
        ShapeError: The shapes do not fit each other.
        DtypeError: A dtype is not floating-point, or they differ.
        OptionError: `rotary_dim` is odd or too large, or a table has no counterpart.
        IndexRangeError: A position has no row in `cos`; on a CPU.
        ImplementationError: The implementation asked for cannot take this call.

    Example:
        >>> q = torch.tensor([1.0, 0.0]).expand(1, 3, 1, 2)
        >>> rope(q, q)[0].flatten(1)
        tensor([[ 1.0000,  0.0000,  0.5403,  0.8415, -0.4161,  0.9093]])
    """
    found = facts(
        q,
        k,
        cos,
        sin,
        positions=positions,
        base=base,
        interleaved=interleaved,
        rotary_dim=rotary_dim,
        cu_seqlens=cu_seqlens,
    )
    if positions is None and cu_seqlens is not None:
        positions = packed_positions(cu_seqlens, q.shape[0])
    if cos is None or sin is None:
        width = found.rotary_dim
        if positions is None:
            tables = counted_tables(q.shape[-3], width, base, q)
        else:
            tables = rope_tables(positions, width, base, q.dtype == torch.float64)
        cos, sin = (replicated_beside(q, table) for table in tables)
    elif positions is not None:
        _check_rows(positions, len(cos))
        cos, sin = cos[positions], sin[positions]
    return OP.run(found, impl, q, k, cos, sin, interleaved)  # type: ignore[no-any-return]


def facts(
    q: Tensor,
    k: Tensor,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    *,
    positions: Tensor | None = None,
    base: float = 10000.0,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    cu_seqlens: Tensor | None = None,
) -> RopeFacts:
    """Checks a call and returns what the choice depends on.

    Args:
        q: See `rope`.
        k: Likewise.
        cos: Likewise.
        sin: Likewise.
        positions: Likewise.
        base: Likewise.
        interleaved: Likewise.
        rotary_dim: Likewise.
        cu_seqlens: Likewise.
    """
    del interleaved
    check_floating("rope", "q", q)
    check_floating("rope", "k", k)
    check_like("rope", ("q", q), ("k", k))
    if q.dim() not in {3, 4}:
        message = (
            "rope: q must be (batch, sequence, heads, head_dim) or (tokens, heads, "
            f"head_dim), got the shape {tuple(q.shape)}"
        )
        raise ShapeError(message)
    check_shape("rope", "k", k, (*q.shape[:-2], *k.shape[-2:-1], q.shape[-1]))
    check_positive("rope", "base", base)
    if (cos is None) != (sin is None):
        message = "rope: give both cos and sin, or neither"
        raise OptionError(message)
    if rotary_dim is not None:
        check_whole("rope", "rotary_dim", rotary_dim)
    width = q.shape[-1] if rotary_dim is None else rotary_dim
    if width % 2 or not 0 < width <= q.shape[-1]:
        message = (
            "rope: rotary_dim must be even and from 2 to the head_dim, "
            f"{q.shape[-1]}, got {width}"
        )
        raise OptionError(message)
    _check_places(q, positions, cu_seqlens)
    if cos is not None and sin is not None:
        indexed = positions is not None or cu_seqlens is not None
        _check_tables(q, cos, sin, width // 2, indexed)
    return RopeFacts(
        device=q.device.type,
        dtype=q.dtype,
        rotary_dim=width,
        tables_need_grad=cos is not None and cos.requires_grad,
        distributed=is_distributed(q, k, cos),
    )


def _check_places(
    q: Tensor, positions: Tensor | None, cu_seqlens: Tensor | None
) -> None:
    for name, tensor in (("positions", positions), ("cu_seqlens", cu_seqlens)):
        if tensor is None:
            continue
        check_integer("rope", name, tensor)
        if tensor.device != q.device:
            message = (
                f"rope: {name} must be on the device of q, {q.device}, got "
                f"{tensor.device}; move it"
            )
            raise DeviceError(message)
    # Not sets of shapes: while a compiler traces, sizes may be symbols without a hash.
    if positions is not None and tuple(positions.shape) not in (
        tuple(q.shape[:-2]),
        tuple(q.shape[-3:-2]),
    ):
        message = (
            f"rope: positions must have the shape {tuple(q.shape[-3:-2])} or "
            f"{tuple(q.shape[:-2])}, got {tuple(positions.shape)}"
        )
        raise ShapeError(message)
    if cu_seqlens is not None and (
        q.dim() != 3 or cu_seqlens.dim() != 1 or len(cu_seqlens) < 1
    ):
        message = (
            "rope: cu_seqlens must have the shape (sequences + 1,) and goes with q of "
            f"(tokens, heads, head_dim), got {tuple(cu_seqlens.shape)} and "
            f"{tuple(q.shape)}"
        )
        raise ShapeError(message)


def _check_rows(positions: Tensor, num_rows: int) -> None:
    """Raises for positions that a table lacks, on a CPU, where reading them is free."""
    if positions.numel() == 0 or not is_readable(positions):
        return
    least, most = int(positions.min()), int(positions.max())
    if least < 0 or most >= num_rows:
        message = (
            f"rope: positions must be from 0 to {num_rows - 1}, as cos has {num_rows} "
            f"rows, got {least} to {most}"
        )
        raise IndexRangeError(message)


def _check_tables(
    q: Tensor, cos: Tensor, sin: Tensor, half: int, indexed: bool
) -> None:
    check_floating("rope", "cos", cos)
    check_like("rope", ("cos", cos), ("sin", sin))
    check_shape("rope", "sin", sin, cos.shape)
    if cos.device != q.device:
        message = f"rope: cos must be on the device of q, {q.device}, got {cos.device}"
        raise DeviceError(message)
    shapes = [(*q.shape[-3:-2], half)]
    if q.dim() == 4:
        shapes.append((*q.shape[:-2], half))
    if indexed:
        fits = cos.dim() == 2 and cos.shape[-1] == half
    else:
        fits = tuple(cos.shape) in shapes
    if not fits:
        rule = f"(positions, {half})" if indexed else " or ".join(map(str, shapes))
        message = f"rope: cos must have the shape {rule}, got {tuple(cos.shape)}"
        raise ShapeError(message)


def _reference(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    wide = accumulation_dtype(q.dtype)
    cos, sin = (table.to(wide).unsqueeze(-2) for table in (cos, sin))
    return _rotate(q, cos, sin, interleaved), _rotate(k, cos, sin, interleaved)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    width = 2 * cos.shape[-1]
    turned, rest = x[..., :width].to(cos.dtype), x[..., width:]
    if interleaved:
        x1, x2 = turned[..., ::2], turned[..., 1::2]
        out = torch.stack((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1).flatten(-2)
    else:
        x1, x2 = turned.chunk(2, -1)
        out = torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)
    out = out.to(x.dtype)
    return torch.cat((out, rest), -1) if rest.shape[-1] else out


def _triton(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    # Triton is an extra, which only those need who run its kernels.
    from drivetrain_kernels.ops import _triton_rope

    wide = accumulation_dtype(q.dtype)
    cos, sin = (table.to(wide).contiguous() for table in (cos, sin))
    turn = _triton_rope.rotate
    return turn(q, cos, sin, interleaved, False), turn(k, cos, sin, interleaved, False)


def _triton_refuses(facts: RopeFacts) -> str | None:
    if facts.tables_need_grad:
        return "has no gradient of cos and sin, which require one"
    if facts.distributed:
        return "takes no DTensor"
    return triton_missing(facts.device)


def _example(device: torch.device, dtype: torch.dtype) -> Example:
    q = torch.randn(2, 5, 4, 8, device=device, dtype=dtype)
    return (q, q[:, :, :2]), {}


OP = Op(
    name="rope",
    implementations=(
        triton_form(
            _triton,
            refuse=_triton_refuses,
            because="one pass each way over queries and over keys",
        ),
        compiled_form(_reference),
        reference_form(_reference),
    ),
    facts=facts,
    example=_example,
)
