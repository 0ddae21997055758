"""Reading, rounding and writing one block of a row in a Triton kernel.

bfloat16 is rounded by hand, and every load is widened at once: Triton's interpreter,
which runs the kernels where there is no GPU, truncates to bfloat16 and calculates
wrongly in it.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, SIM300

import triton
import triton.language as tl

from drivetrain_optim.fused._table import COLUMNS

_NUM_COLUMNS = tl.constexpr(len(COLUMNS))
_WEIGHT = tl.constexpr(COLUMNS.index("weight"))
_GRAD = tl.constexpr(COLUMNS.index("grad"))
_EXP_AVG = tl.constexpr(COLUMNS.index("exp_avg"))
_EXP_AVG_SQ = tl.constexpr(COLUMNS.index("exp_avg_sq"))
_MAX_EXP_AVG_SQ = tl.constexpr(COLUMNS.index("max_exp_avg_sq"))
_MASTER = tl.constexpr(COLUMNS.index("master"))
_NUMEL = tl.constexpr(COLUMNS.index("numel"))
_SEED = tl.constexpr(COLUMNS.index("seed"))


@triton.jit
def weighted(factor, values):
    """Returns a multiple; 0 for the factor 0, even of an infinity."""
    return tl.where(factor != 0, factor * values, 0.0)


@triton.jit
def place_of(chunks, chunk, table, CHUNK_NUMEL: tl.constexpr):
    """Returns a chunk's row, where it starts in it, and where the row ends."""
    row = tl.load(chunks + 2 * chunk)
    # In int64: a tensor may have more than 2^31 elements.
    start = tl.load(chunks + 2 * chunk + 1).to(tl.int64) * CHUNK_NUMEL
    return row, start, tl.load(table + row * _NUM_COLUMNS + _NUMEL)


@triton.jit
def addresses_of(table, row):
    """Returns the addresses of a row's tensors, 0 for one that it has not."""
    columns = table + row * _NUM_COLUMNS
    return (
        tl.load(columns + _WEIGHT),
        tl.load(columns + _GRAD),
        tl.load(columns + _EXP_AVG),
        tl.load(columns + _EXP_AVG_SQ),
        tl.load(columns + _MAX_EXP_AVG_SQ),
        tl.load(columns + _MASTER),
    )


@triton.jit
def seed_of(table, row):
    """Returns the seed of a row's random bits."""
    return (tl.load(table + row * _NUM_COLUMNS + _SEED) - 1).to(tl.uint32)


@triton.jit
def number(
    value, row, K: tl.constexpr, ON_DEVICE: tl.constexpr, PER_ROW: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """Returns the number in place `K` of the arguments."""
    if (ON_DEVICE >> K) & 1:
        x = tl.load(value + row * ((PER_ROW >> K) & 1)).to(DTYPE)
    else:
        # In the interpreter it is a float, which has no `to`.
        x = tl.full((), value, DTYPE)
    return x


@triton.jit
def is_full(addresses, first, numel, BLOCK: tl.constexpr):
    """Returns whether a block ends within its tensors, which are aligned for vectors."""
    weight, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, master = addresses
    together = weight | grad | exp_avg | exp_avg_sq | max_exp_avg_sq | master
    return ((together & 15) == 0) & (first + BLOCK <= numel)


@triton.jit
def load(address, span, DTYPE: tl.constexpr, ACC: tl.constexpr, FULL: tl.constexpr):
    """Returns a block in the dtype of arithmetic; 0 beyond the end of the tensor."""
    first, offsets, numel = span
    pointer = address.to(tl.pointer_type(DTYPE))
    if FULL:
        # With the hint, and without a mask, a thread reads sixteen bytes at once.
        values = tl.load(tl.multiple_of(pointer, 16) + first + offsets)
    else:
        inside = first + offsets < numel
        values = tl.load(pointer + first + offsets, mask=inside, other=0.0)
    return values.to(ACC)


@triton.jit
def load_weight(
    addresses, span,
    WEIGHT: tl.constexpr, MASTER: tl.constexpr, ACC: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Returns a block of the weights, or of their masters."""
    if MASTER:
        w = load(addresses[5], span, tl.float32, ACC, FULL)
    else:
        w = load(addresses[0], span, WEIGHT, ACC, FULL)
    return w


@triton.jit
def _write(values, address, span, DTYPE: tl.constexpr, FULL: tl.constexpr):
    first, offsets, numel = span
    pointer = address.to(tl.pointer_type(DTYPE))
    if FULL:
        tl.store(tl.multiple_of(pointer, 16) + first + offsets, values.to(DTYPE))
    else:
        inside = first + offsets < numel
        tl.store(pointer + first + offsets, values.to(DTYPE), mask=inside)


@triton.jit
def _nearest_bf16(bits):
    """Returns the bits of the nearest bfloat16, given those of a float32."""
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, rounded)


@triton.jit
def _stochastic_bf16(bits, index, seed):
    """Returns the bits of a neighbouring bfloat16, drawn by seed and position."""
    h = index.to(tl.uint32) * 0x9E3779B9 + seed
    h ^= h >> 16
    h *= 0x85EBCA6B
    h ^= h >> 13
    h *= 0xC2B2AE35
    h ^= h >> 16
    is_finite = (bits & 0x7F800000) != 0x7F800000
    return tl.where(is_finite, (bits + (h & 0xFFFF)) >> 16, _nearest_bf16(bits))


@triton.jit
def store(values, address, span, DTYPE: tl.constexpr, FULL: tl.constexpr):
    """Rounds a block to nearest and writes what lies within the tensor."""
    if DTYPE == tl.bfloat16:
        bits = values.to(tl.float32).to(tl.uint32, bitcast=True)
        _write(_nearest_bf16(bits), address, span, tl.uint16, FULL)
    else:
        _write(values, address, span, DTYPE, FULL)


@triton.jit
def store_weight(
    w, addresses, span, seed,
    WEIGHT: tl.constexpr, MASTER: tl.constexpr, STOCHASTIC: tl.constexpr,
    FULL: tl.constexpr,
):  # fmt: skip
    """Writes a block of the weights, and of their masters."""
    if MASTER:
        _write(w, addresses[5], span, tl.float32, FULL)
    if STOCHASTIC:
        bits = w.to(tl.float32).to(tl.uint32, bitcast=True)
        rounded = _stochastic_bf16(bits, span[0] + span[1], seed)
        _write(rounded, addresses[0], span, tl.uint16, FULL)
    else:
        store(w, addresses[0], span, WEIGHT, FULL)


@triton.jit
def root(x, ACC: tl.constexpr):
    """Returns the root rounded as IEEE says; the default is approximate in float32."""
    return tl.sqrt_rn(x) if ACC == tl.float32 else tl.sqrt(x)


@triton.jit
def quotient(x, y, ACC: tl.constexpr):
    """Returns the quotient rounded as IEEE says; likewise."""
    return tl.div_rn(x, y) if ACC == tl.float32 else x / y


@triton.jit
def clamp(x, low, high):
    """Returns a number within its bounds; NaN, which does not compare, stays NaN."""
    x = tl.where(x < low, low, x)
    return tl.where(x > high, high, x)
