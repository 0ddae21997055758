"""Attention by Triton kernels, as operators that `torch.compile` knows.

Importing this module imports Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.runtime.errors import OutOfResources

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._errors import ImplementationError, OptionError
from drivetrain_kernels._fast_path import first_order
from drivetrain_kernels._triton_blocks import (
    INTERPRETS,
    TRITON_DTYPES,
    device_facts,
    on_device_of,
)
from drivetrain_kernels.ops._triton_attention_kernels import (
    backward_keys_kernel,
    backward_queries_kernel,
    forward_kernel,
)

if TYPE_CHECKING:
    from drivetrain_kernels.ops._attention_options import AttentionOptions

NO_BOUND = -1
INTERPRETED_BLOCK = 32
MAX_PROGRAMS = 2**31 - 1
_STAGES = 2
_LEAST_BLOCK = 16  # of a product of tensor cores
# How often tiles of a kernel were halved, by kernel, device, dtype and head.
_halvings: dict[tuple[Any, ...], int] = {}
# A search costs a program some reads, one after the other.
_WORTH_SEARCHING = 2
# The shared memory that the compiler takes for all tiles, to their bytes, by the major
# compute capability: older ones keep tiles in registers, newer ones the scores beside them.
_SHARES = {7: 0.75, 8: 0.75, 9: 1.05, 10: 1.45}


def triton_attention(
    q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
) -> Tensor:
    """Returns attention by the kernels.

    Args:
        q: [B, Sq, Hq, D], or packed [Tq, Hq, D].
        k: [B, Sk, Hk, D], or packed [Tk, Hk, D].
        v: Of the shape of k.
        options: Those of the call, without dropout.
    """
    band, packed = options.band, options.packed
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    out: Tensor = _forward(
        q,
        k,
        v,
        None if packed is None else packed.cu_q,
        None if packed is None else packed.cu_k,
        0 if packed is None else packed.max_seqlen,
        NO_BOUND if band.left is None else band.left,
        NO_BOUND if band.right is None else band.right,
        options.scale,
        options.softcap or 0.0,
    )[0]
    return out


@torch.library.custom_op("drivetrain_kernels::attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    max_seqlen: int,
    left: int,
    right: int,
    scale: float,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    out, lse = _empty_results(q)
    if cu_q is not None or k.numel() == 0:
        out.zero_()  # tokens behind the last sequence belong to none
        lse.zero_()
    if out.numel() == 0 or k.numel() == 0:
        return out, lse
    _launch(
        forward_kernel,
        "BLOCK_M",
        q,
        cu_q,
        max_seqlen,
        (
            *(q, k, v, out, lse, cu_q, cu_k),
            *_strides(q, k, v, out),
            *_lse_strides(lse),
            *_sizes(q, k, left, right),
        ),
        scale,
        _constants(q, k, cu_q, left, right, softcap),
    )
    return out, lse


@_forward.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _empty_results(q)


@torch.library.custom_op("drivetrain_kernels::attention_backward", mutates_args=())
def _gradients(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    max_seqlen: int,
    left: int,
    right: int,
    scale: float,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = _empty_gradients(q, k)
    if cu_q is not None or q.numel() == 0 or k.numel() == 0:
        for grad in (dq, dk, dv):
            grad.zero_()
    if q.numel() == 0 or k.numel() == 0:
        return dq, dk, dv
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    wide = lse.dtype
    delta = (dout.to(wide) * out.to(wide)).sum(-1).transpose(-1, -2).contiguous()
    shared = (*_lse_strides(lse), *_sizes(q, k, left, right))
    constants = _constants(q, k, cu_q, left, right, softcap)
    _launch(
        backward_queries_kernel,
        "BLOCK_M",
        q,
        cu_q,
        max_seqlen,
        (
            *(q, k, v, dout, lse, delta, dq, cu_q, cu_k),
            *_strides(q, k, v, dout, dq),
            *shared,
        ),
        scale,
        constants,
        is_backward=True,
    )
    _launch(
        backward_keys_kernel,
        "BLOCK_N",
        k,
        cu_k,
        max_seqlen,
        (
            *(q, k, v, dout, lse, delta, dk, dv, cu_q, cu_k),
            *_strides(q, k, v, dout, dk),
            *shared,
        ),
        scale,
        constants,
        is_backward=True,
    )
    return dq, dk, dv


@first_order(_gradients).register_fake
def _(dout: Tensor, q: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    del dout
    return _empty_gradients(q, k)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, max_seqlen, left, right, scale, softcap = inputs
    ctx.save_for_backward(*tensors[:3], *output, *tensors[3:])
    ctx.numbers = (max_seqlen, left, right, scale, softcap)


def _backward(ctx: Any, dout: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    return *_gradients(dout, *ctx.saved_tensors, *ctx.numbers), *(None,) * 7


_forward.register_autograd(_backward, setup_context=_keep)


def _empty_results(q: Tensor) -> tuple[Tensor, Tensor]:
    rows = (*q.shape[:-3], q.shape[-2], q.shape[-3])
    return q.new_empty(q.shape), q.new_empty(rows, dtype=accumulation_dtype(q.dtype))


def _empty_gradients(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), k.new_empty(k.shape)


def _launch(
    kernel: Any,
    axis: str,
    tokens: Tensor,
    cu: Tensor | None,
    max_seqlen: int,
    arguments: tuple[Any, ...],
    scale: float,
    constants: dict[str, Any],
    *,
    is_backward: bool = False,
) -> None:
    """Launches a kernel, with smaller tiles where the compiler needs more than reckoned.

    Args:
        kernel: The kernel.
        axis: Which size of its tiles the programs divide tokens by.
        tokens: The queries or keys that are divided.
        cu: Their offsets, or None.
        max_seqlen: A bound of packed sequences' lengths.
        arguments: What comes before the grid's.
        scale: Multiplies the scores.
        constants: Those of the call.
        is_backward: Whether it holds the tiles of a backward kernel.

    Raises:
        ImplementationError: No tiles fit the device.
    """
    key = (kernel, tokens.device, tokens.dtype, tokens.shape[-1])
    while True:
        blocks = _blocks(tokens, is_backward=is_backward)
        for name in ("BLOCK_M", "BLOCK_N"):
            blocks[name] = max(_LEAST_BLOCK, blocks[name] >> _halvings.get(key, 0))
        grid = _grid(tokens, cu, max_seqlen, blocks[axis])
        try:
            with on_device_of(tokens):
                kernel[(grid.programs,)](
                    *arguments,
                    grid.num_blocks,
                    grid.num_sharing,
                    scale,
                    HEADS=tokens.shape[-2],
                    **constants,
                    **blocks,
                    enable_fp_fusion=True,
                )
        except OutOfResources as error:
            if max(blocks["BLOCK_M"], blocks["BLOCK_N"]) <= _LEAST_BLOCK:
                message = (
                    f"attention: the implementation 'triton' cannot take heads of "
                    f"{tokens.shape[-1]} on {tokens.device}: {error}; name another one"
                )
                raise ImplementationError(message) from error
            _halvings[key] = _halvings.get(key, 0) + 1
        else:
            return


class _Grid(NamedTuple):
    """How programs are shared among blocks of sequences and heads.

    Args:
        programs: How many there are.
        num_blocks: How many blocks a sequence has, or those together that share.
        num_sharing: How many sequences share blocks, in which a program finds its own; 0
            where each has as many.
    """

    programs: int
    num_blocks: int
    num_sharing: int


def _grid(tokens: Tensor, cu: Tensor | None, max_seqlen: int, block: int) -> _Grid:
    """Returns the grid of a launch.

    Where the bound of packed sequences is far from most of their lengths, nearly all
    programs would end at once: then they are counted by the tokens.
    """
    heads, num_sharing = tokens.shape[-2], 0
    if cu is None:
        longest, num_sequences = tokens.shape[1], tokens.shape[0]
    else:
        longest = min(max_seqlen, tokens.shape[0])
        num_sequences = max(1, len(cu) - 1)
    num_blocks = triton.cdiv(longest, block)
    programs = num_blocks * num_sequences * heads
    if cu is not None:
        together = tokens.shape[0] // block + num_sequences
        if len(cu) > 1 and _WORTH_SEARCHING * together * heads < programs:
            num_blocks, num_sharing = together, num_sequences
            programs = together * heads
    if programs > MAX_PROGRAMS:
        message = (
            f"attention: {num_sequences:,} sequences of up to {longest:,} tokens need "
            f"{programs:,} programs, a GPU takes {MAX_PROGRAMS:,}; split the batch"
        )
        raise OptionError(message)
    return _Grid(programs, num_blocks, num_sharing)


def _strides(*tensors: Tensor) -> list[int]:
    """Returns the strides of batch, row and head of each tensor."""
    found = []
    for tensor in tensors:
        batch = tensor.stride(0) if tensor.dim() == 4 else 0
        found += [batch, tensor.stride(-3), tensor.stride(-2)]
    return found


def _lse_strides(lse: Tensor) -> tuple[int, int]:
    return lse.stride(0) if lse.dim() == 3 else 0, lse.stride(-2)


def _sizes(q: Tensor, k: Tensor, left: int, right: int) -> tuple[int, int, int, int]:
    return q.shape[-3], k.shape[-3], left, right


def _constants(
    q: Tensor, k: Tensor, cu_q: Tensor | None, left: int, right: int, softcap: float
) -> dict[str, Any]:
    acc = TRITON_DTYPES[accumulation_dtype(q.dtype)]
    dtype = TRITON_DTYPES[q.dtype]
    return {
        "GROUPS": q.shape[-2] // k.shape[-2],
        "HAS_LEFT": left != NO_BOUND,
        "HAS_RIGHT": right != NO_BOUND,
        "PACKED": cu_q is not None,
        "CAP": softcap,
        "HEAD": q.shape[-1],
        "DTYPE": dtype,
        # The interpreter multiplies bfloat16 wrongly.
        "DOT": acc if INTERPRETS.value else dtype,
        "ACC": acc,
    }


def _blocks(q: Tensor, *, is_backward: bool) -> dict[str, int]:
    """Returns the sizes of tiles, by what fits the device's shared memory."""
    head = max(16, int(triton.next_power_of_2(q.shape[-1])))
    if INTERPRETS.value:
        return {
            "BLOCK_M": INTERPRETED_BLOCK,
            "BLOCK_N": INTERPRETED_BLOCK,
            "BLOCK_D": head,
        }
    row_bytes = head * q.element_size()
    queries, keys = (64, 64) if is_backward else (128, 64)
    facts = device_facts(q.device)
    most = facts.shared_memory_bytes / _SHARES[min(facts.capability[0], 10)]
    while keys > 16 and (
        (queries + 2 * keys) * row_bytes > 96 << 10
        or _num_rows(queries, keys, is_backward=is_backward) * row_bytes > most
    ):
        queries, keys = max(16, queries // 2), keys // 2
    return {
        "BLOCK_M": queries,
        "BLOCK_N": keys,
        "BLOCK_D": head,
        "num_warps": 8 if head >= 128 else 4,
        "num_stages": _STAGES,
    }


def _num_rows(queries: int, keys: int, *, is_backward: bool) -> int:
    """Returns the rows of all tiles of a program, those that are loaded ahead too."""
    if not is_backward:
        return queries + 2 * _STAGES * keys
    return 2 * max(queries + _STAGES * keys, keys + _STAGES * queries)
