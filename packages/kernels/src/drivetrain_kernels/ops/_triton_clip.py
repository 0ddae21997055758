"""Triton kernels over a table of addresses: any number of gradients in one launch.

Each program reads or scales one chunk; its row of the table says where the chunk lies
and how long it is. The table is copied to the device again only when it has changed.

Importing this module imports Triton.
"""

# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003  (read for schemas)
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from drivetrain_core.accelerators import accelerator_of
from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._triton_blocks import (
    INTERPRETS,
    TRITON_DTYPES,
    on_device_of,
    round_to,
)
from drivetrain_kernels.ops._clip_epsilon import EPS

_CHUNK = 65536
_BLOCK = 2048
_INTERPRETED_BLOCK = 16384
_NUM_KEPT = 8  # tables: a training loop has one or two

_tables: dict[tuple[Any, ...], Tensor] = {}
# What graphs read whenever they are replayed, and nobody says when that ends: 16 bytes for
# each chunk.
_captured: list[tuple[Tensor, Tensor]] = []


@triton.jit
def _is_full(address, length, CHUNK: tl.constexpr):
    """Whether a chunk is whole and aligned for vectors: it is read 16 bytes at a time."""
    return ((address & 15) == 0) & (length == CHUNK)


@triton.jit
def _load(
    address,
    place,
    length,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    FULL: tl.constexpr,
):
    start = address.to(tl.pointer_type(DTYPE))
    if FULL:
        g = tl.load(tl.multiple_of(start, 16) + place)
    else:
        g = tl.load(start + place, mask=place < length, other=0.0)
    return g.to(ACC)


@triton.jit
def _squares(
    address,
    length,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    FULL: tl.constexpr,
):
    total = tl.zeros([BLOCK], ACC)
    for first in range(0, CHUNK, BLOCK):
        g = _load(address, first + tl.arange(0, BLOCK), length, DTYPE, ACC, FULL)
        total += g * g
    return tl.sum(total, 0)


@triton.jit
def _scale(
    address,
    length,
    factor,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    FULL: tl.constexpr,
):
    start = address.to(tl.pointer_type(DTYPE))
    for first in range(0, CHUNK, BLOCK):
        place = first + tl.arange(0, BLOCK)
        g = round_to(_load(address, place, length, DTYPE, ACC, FULL) * factor, DTYPE)
        if FULL:
            tl.store(tl.multiple_of(start, 16) + place, g)
        else:
            tl.store(start + place, g, mask=place < length)


@triton.jit
def _squares_kernel(
    TABLE,
    OUT,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    address = tl.load(TABLE + 2 * program)
    length = tl.load(TABLE + 2 * program + 1)
    if _is_full(address, length, CHUNK):
        total = _squares(address, length, DTYPE, ACC, CHUNK, BLOCK, True)
    else:
        total = _squares(address, length, DTYPE, ACC, CHUNK, BLOCK, False)
    tl.store(OUT + program, total)


@triton.jit
def _scale_kernel(
    TABLE,
    TOTAL,
    MAX_NORM: tl.constexpr,
    EPS: tl.constexpr,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    address = tl.load(TABLE + 2 * program)
    length = tl.load(TABLE + 2 * program + 1)
    factor = MAX_NORM / (tl.load(TOTAL) + EPS)
    # A comparison with NaN is false, so that NaN stays the factor.
    factor = tl.where(factor > 1.0, 1.0, factor).to(ACC)
    if factor != 1.0:
        if _is_full(address, length, CHUNK):
            _scale(address, length, factor, DTYPE, ACC, CHUNK, BLOCK, True)
        else:
            _scale(address, length, factor, DTYPE, ACC, CHUNK, BLOCK, False)


@torch.library.custom_op("drivetrain_kernels::total_norm", mutates_args=())
def total_norm(grads: Sequence[Tensor]) -> Tensor:
    """Returns the 2-norm of all gradients together.

    Args:
        grads: Contiguous, on one device, of any floating dtypes.
    """
    acc = _total_dtype(grads)
    parts = []
    for dtype, group in _by_dtype(grads).items():
        table = _table(group)
        part = torch.empty(len(table), device=table.device, dtype=acc)
        if len(table):
            _launch(_squares_kernel, table, part, dtype, {})
        parts.append(part)
    return torch.cat(parts).sum().sqrt()


@total_norm.register_fake
def _(grads: Sequence[Tensor]) -> Tensor:
    return grads[0].new_empty((), dtype=_total_dtype(grads))


@torch.library.custom_op("drivetrain_kernels::scale_grads", mutates_args=("grads",))
def scale(grads: Sequence[Tensor], total: Tensor, max_norm: float) -> None:
    """Scales gradients in place by `min(1, max_norm / total)`.

    Args:
        grads: As for `total_norm`.
        total: Their norm.
        max_norm: The largest norm that is left.
    """
    for dtype, group in _by_dtype(grads).items():
        table = _table(group)
        if len(table):
            constants = {"MAX_NORM": max_norm, "EPS": EPS}
            _launch(_scale_kernel, table, total, dtype, constants)


def _total_dtype(grads: Sequence[Tensor]) -> torch.dtype:
    wide = any(grad.dtype == torch.float64 for grad in grads)
    return torch.float64 if wide else torch.float32


def _by_dtype(grads: Sequence[Tensor]) -> dict[torch.dtype, list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for grad in grads:
        groups.setdefault(grad.dtype, []).append(grad)
    return groups


def _table(grads: Sequence[Tensor]) -> Tensor:
    """Returns address and length of each chunk, on the device of the gradients.

    A table is there for the work that its stream does after it, and one that a graph
    copies only once that graph is replayed: others never see either.
    """
    device = grads[0].device
    stream, is_captured = _stream(device)
    key = (device, stream, *((g.data_ptr(), g.numel(), g.dtype) for g in grads))
    found = None if is_captured else _tables.pop(key, None)
    if found is not None:
        _tables[key] = found
        return found
    host = torch.from_numpy(_chunks(grads))
    if device.type != "cpu":
        host = host.pin_memory()
    found = host.to(device, non_blocking=True)
    if is_captured:
        _captured.append((host, found))
    else:
        while len(_tables) >= _NUM_KEPT:
            del _tables[next(iter(_tables))]
        _tables[key] = found
    return found


def _stream(device: torch.device) -> tuple[int, bool]:
    """Returns the stream that does the work, and whether a graph captures it."""
    if device.type == "cpu":
        return 0, False
    stream = torch.accelerator.current_stream(device).stream_id
    return stream, accelerator_of(device).is_capturing()


def _chunks(grads: Sequence[Tensor]) -> np.ndarray[Any, np.dtype[np.int64]]:
    addresses = np.array([g.data_ptr() for g in grads], dtype=np.int64)
    lengths = np.array([g.numel() for g in grads], dtype=np.int64)
    sizes = np.array([g.element_size() for g in grads], dtype=np.int64)
    counts = -(-lengths // _CHUNK)
    tensor = np.repeat(np.arange(len(grads)), counts)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    start = (np.arange(len(tensor)) - before) * _CHUNK
    length = np.minimum(lengths[tensor] - start, _CHUNK)
    return np.stack((addresses[tensor] + start * sizes[tensor], length), 1)


def _launch(
    kernel: Any,
    table: Tensor,
    other: Tensor,
    dtype: torch.dtype,
    constants: dict[str, float],
) -> None:
    with on_device_of(table):
        kernel[(len(table),)](
            table,
            other,
            **constants,
            DTYPE=TRITON_DTYPES[dtype],
            ACC=TRITON_DTYPES[accumulation_dtype(dtype)],
            CHUNK=_CHUNK,
            BLOCK=_INTERPRETED_BLOCK if INTERPRETS.value else _BLOCK,
            enable_fp_fusion=True,
        )
