# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""What the Triton kernels share: functions, rounding, random masks, sizes of launches.

Importing this module imports Triton.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from drivetrain_core.accelerators import accelerator_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor

    from drivetrain_core.accelerators import AcceleratorFacts

TRITON_DTYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
INTERPRETS = tl.constexpr(bool(triton.knobs.runtime.interpret))
_INTERPRETED_PROGRAMS = 4
_WARPS_A_PROCESSOR = 16


@triton.jit
def round_to(value, DTYPE: tl.constexpr):
    """Returns float32 or float64 values in a dtype, rounded to nearest even.

    The interpreter truncates to bfloat16, so that there the bits are rounded by hand.

    Args:
        value: What to round.
        DTYPE: Triton's dtype.
    """
    if INTERPRETS:  # noqa: SIM102  (constants, which Triton looks at one by one)
        if tl.bfloat16 == DTYPE:
            bits = value.to(tl.float32).to(tl.int32, bitcast=True)
            # The sign is the top bit, so that the sum may not cross from NaN into it.
            even = (bits >> 16) & 1
            rounded = (bits + (even + 0x7FFF)) & -65536
            rounded = tl.where(value == value, rounded, bits)  # noqa: PLR0124
            return rounded.to(tl.float32, bitcast=True).to(tl.bfloat16)
    return value.to(DTYPE)


@triton.jit
def sigmoid(value):
    """Returns 1 / (1 + exp(-value)), by a power that overflows for no value.

    Args:
        value: float32 or float64.
    """
    power = tl.exp(-tl.abs(value))
    return tl.where(value < 0.0, power, 1.0) / (1.0 + power)


@triton.jit
def tanh(value):
    """Returns the hyperbolic tangent, which Triton lacks.

    Its absolute error is that of a sum with 1, so that it is inexact near 0.

    Args:
        value: float32 or float64.
    """
    power = tl.exp(-2.0 * tl.abs(value))
    share = (1.0 - power) / (1.0 + power)
    return tl.where(value < 0.0, -share, share)


@triton.jit
def keep_row(seed, row, num_kept_bits, BLOCK: tl.constexpr):
    """Returns which elements of a row dropout keeps: those with random bits above.

    Four neighbours share one call of Philox-4x32, whose counter is (column / 4, row).

    Args:
        seed: The key, an int64.
        row: The row's number, an int64.
        num_kept_bits: An element is dropped if its 32 bits are less than this.
        BLOCK: The number of columns.
    """
    group = tl.arange(0, BLOCK // 4).to(tl.uint32)
    zero = group * 0
    low = zero + (row & 0xFFFFFFFF).to(tl.uint32)
    high = zero + (row >> 32).to(tl.uint32)
    a, b, c, d = tl.philox(seed, group, low, high, zero)
    bits = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    return bits.to(tl.int64) >= num_kept_bits


@functools.cache
def device_facts(device: torch.device) -> AcceleratorFacts:
    """Returns what a device has, by which kernels are cut to size.

    Each device is asked once: asking takes longer than a launch.

    Args:
        device: Where the tensors of a kernel lie.
    """
    return accelerator_of(device).facts(device.index or 0)


def num_programs(num_rows: int, num_warps: int, device: torch.device) -> int:
    """Returns how many programs share rows, each with partial sums of its own.

    Args:
        num_rows: How many rows there are.
        num_warps: How many warps a program has.
        device: Where they lie.
    """
    most = _INTERPRETED_PROGRAMS
    if not INTERPRETS.value:
        each = max(2, _WARPS_A_PROCESSOR // num_warps)
        most = device_facts(device).num_processors * each
    return max(1, min(num_rows, most))


def num_warps(block: int) -> int:
    """Returns how many warps handle a block.

    Args:
        block: How many elements it has.
    """
    return min(16, max(1, block // 512))


def on_device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Returns a context in which Triton launches on the device of a tensor.

    Args:
        tensor: One of the kernel's arguments.
    """
    if tensor.device.type == "cpu":
        return contextlib.nullcontext()
    return torch.accelerator.device_index(tensor.device.index)
