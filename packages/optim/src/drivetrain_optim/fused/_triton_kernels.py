"""The Triton kernels: the same arithmetic as `csrc/kernels.cpp`, on a GPU.

A program works on one chunk: `NUM_BLOCKS` blocks of `BLOCK` elements of one row of the
pointer table. A number of the step is an argument, or a pointer if it lies on the
device: then its bit of `ON_DEVICE` is set, and that of `PER_ROW` if there is one
element for each row.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import torch
import triton
import triton.language as tl

from drivetrain_optim.fused._triton_blocks import (
    addresses_of,
    clamp,
    is_full,
    load,
    load_weight,
    number,
    place_of,
    quotient,
    root,
    seed_of,
    store,
    store_weight,
    weighted,
)

DTYPES = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
"""Triton's dtypes by torch's."""

# A number on the device may lie at any address: its alignment must not make a kernel.
_AGD_NUMBERS = [
    *("keep", "beta2", "previous", "value", "floor"),
    *("rate", "shrink", "coupled", "clip", "scale"),
]
_LAMB_NUMBERS = [
    *("beta1", "average", "beta2", "fresh", "coupled"),
    *("scale", "debias1", "debias2", "eps", "inside"),
]
_APPLY_NUMBERS = [
    *("debias1", "debias2", "eps", "inside", "shrink"),
    *("lr", "norm_low", "norm_high", "ratio_low", "ratio_high"),
]


@triton.jit
def _agd_block(
    addresses, numbers, span, seed,
    WEIGHT: tl.constexpr, GRAD: tl.constexpr, MOMENT: tl.constexpr, MASTER: tl.constexpr,
    AMSGRAD: tl.constexpr, CLIPS: tl.constexpr, STOCHASTIC: tl.constexpr,
    ACC: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    _, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, _ = addresses
    keep, beta2, previous, value, floor, rate, shrink, coupled, clip, scale = numbers
    w = load_weight(addresses, span, WEIGHT, MASTER, ACC, FULL)
    g = load(grad, span, GRAD, ACC, FULL)
    m = load(exp_avg, span, MOMENT, ACC, FULL)
    v = load(exp_avg_sq, span, MOMENT, ACC, FULL)
    g = g * scale + weighted(coupled, w)
    difference = g - previous * m
    # Two forms, as in torch's `lerp`: at beta1 = 0, m becomes g to the bit.
    m = tl.where(keep < 0.5, m + keep * (g - m), g - (1 - keep) * (g - m))
    v = beta2 * v + value * difference * difference
    second = v
    if AMSGRAD:
        largest = load(max_exp_avg_sq, span, MOMENT, ACC, FULL)
        # The comparisons are written so that NaN stays NaN.
        second = tl.where(v <= largest, largest, v)
        store(second, max_exp_avg_sq, span, MOMENT, FULL)
    denominator = root(second, ACC)
    denominator = tl.where(denominator < floor, floor, denominator)
    step = quotient(m, denominator, ACC)
    if CLIPS:
        step = clamp(step, -clip, clip)
    store(m, exp_avg, span, MOMENT, FULL)
    store(v, exp_avg_sq, span, MOMENT, FULL)
    w = w * shrink - rate * step
    store_weight(w, addresses, span, seed, WEIGHT, MASTER, STOCHASTIC, FULL)


@triton.jit(do_not_specialize=_AGD_NUMBERS)
def agd_kernel(
    table, chunks,
    keep, beta2, previous, value, floor, rate, shrink, coupled, clip, scale,
    ON_DEVICE: tl.constexpr, PER_ROW: tl.constexpr,
    WEIGHT: tl.constexpr, GRAD: tl.constexpr, MOMENT: tl.constexpr, MASTER: tl.constexpr,
    AMSGRAD: tl.constexpr, CLIPS: tl.constexpr, STOCHASTIC: tl.constexpr,
    ACC: tl.constexpr, BLOCK: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Performs one step of AGD; the equations stand in `_agd.py`."""
    row, start, numel = place_of(chunks, tl.program_id(0), table, BLOCK * NUM_BLOCKS)
    addresses = addresses_of(table, row)
    seed = seed_of(table, row)
    numbers = (
        number(keep, row, 0, ON_DEVICE, PER_ROW, ACC),
        number(beta2, row, 1, ON_DEVICE, PER_ROW, ACC),
        number(previous, row, 2, ON_DEVICE, PER_ROW, ACC),
        number(value, row, 3, ON_DEVICE, PER_ROW, ACC),
        number(floor, row, 4, ON_DEVICE, PER_ROW, ACC),
        number(rate, row, 5, ON_DEVICE, PER_ROW, ACC),
        number(shrink, row, 6, ON_DEVICE, PER_ROW, ACC),
        number(coupled, row, 7, ON_DEVICE, PER_ROW, ACC),
        number(clip, row, 8, ON_DEVICE, PER_ROW, ACC),
        number(scale, row, 9, ON_DEVICE, PER_ROW, ACC),
    )
    for block in range(NUM_BLOCKS):
        first = start + block * BLOCK
        span = (first, tl.arange(0, BLOCK), numel)
        if is_full(addresses, first, numel, BLOCK):
            _agd_block(
                addresses, numbers, span, seed, WEIGHT, GRAD, MOMENT, MASTER,
                AMSGRAD, CLIPS, STOCHASTIC, ACC, FULL=True,
            )  # fmt: skip
        elif first < numel:
            _agd_block(
                addresses, numbers, span, seed, WEIGHT, GRAD, MOMENT, MASTER,
                AMSGRAD, CLIPS, STOCHASTIC, ACC, FULL=False,
            )  # fmt: skip


@triton.jit
def _direction(w, m, v, terms, ACC: tl.constexpr):
    """Returns the step of Adam with weight decay."""
    debias1, debias2, eps, inside = terms
    return quotient(m * debias1, root(v, ACC) * debias2 + eps, ACC) + weighted(
        inside, w
    )


@triton.jit
def _lamb_moments_block(
    addresses, numbers, terms, span,
    WEIGHT: tl.constexpr, GRAD: tl.constexpr, MOMENT: tl.constexpr, MASTER: tl.constexpr,
    ACC: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    _, grad, exp_avg, exp_avg_sq, _, _ = addresses
    beta1, average, beta2, fresh, coupled, scale = numbers
    w = load_weight(addresses, span, WEIGHT, MASTER, ACC, FULL)
    g = load(grad, span, GRAD, ACC, FULL)
    m = load(exp_avg, span, MOMENT, ACC, FULL)
    v = load(exp_avg_sq, span, MOMENT, ACC, FULL)
    g = g * scale + weighted(coupled, w)
    m = beta1 * m + average * g
    v = beta2 * v + fresh * g * g
    u = _direction(w, m, v, terms, ACC)
    store(m, exp_avg, span, MOMENT, FULL)
    store(v, exp_avg_sq, span, MOMENT, FULL)
    if not FULL:
        # 0 / eps is not 0 where eps is too small for the dtype.
        u = tl.where(span[0] + span[1] < span[2], u, 0.0)
    return w * w, u * u


@triton.jit(do_not_specialize=_LAMB_NUMBERS)
def lamb_moments_kernel(
    table, chunks, partials,
    beta1, average, beta2, fresh, coupled, scale, debias1, debias2, eps, inside,
    ON_DEVICE: tl.constexpr, PER_ROW: tl.constexpr,
    WEIGHT: tl.constexpr, GRAD: tl.constexpr, MOMENT: tl.constexpr, MASTER: tl.constexpr,
    ACC: tl.constexpr, BLOCK: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Updates LAMB's moments and sums the squares of a chunk's weights and steps."""
    chunk = tl.program_id(0)
    row, start, numel = place_of(chunks, chunk, table, BLOCK * NUM_BLOCKS)
    addresses = addresses_of(table, row)
    numbers = (
        number(beta1, row, 0, ON_DEVICE, PER_ROW, ACC),
        number(average, row, 1, ON_DEVICE, PER_ROW, ACC),
        number(beta2, row, 2, ON_DEVICE, PER_ROW, ACC),
        number(fresh, row, 3, ON_DEVICE, PER_ROW, ACC),
        number(coupled, row, 4, ON_DEVICE, PER_ROW, ACC),
        number(scale, row, 5, ON_DEVICE, PER_ROW, ACC),
    )
    terms = (
        number(debias1, row, 6, ON_DEVICE, PER_ROW, ACC),
        number(debias2, row, 7, ON_DEVICE, PER_ROW, ACC),
        number(eps, row, 8, ON_DEVICE, PER_ROW, ACC),
        number(inside, row, 9, ON_DEVICE, PER_ROW, ACC),
    )
    weights = tl.zeros((BLOCK,), ACC)
    steps = tl.zeros((BLOCK,), ACC)
    for block in range(NUM_BLOCKS):
        first = start + block * BLOCK
        span = (first, tl.arange(0, BLOCK), numel)
        if is_full(addresses, first, numel, BLOCK):
            ww, uu = _lamb_moments_block(
                addresses, numbers, terms, span, WEIGHT, GRAD, MOMENT, MASTER, ACC,
                FULL=True,
            )  # fmt: skip
            weights += ww
            steps += uu
        elif first < numel:
            ww, uu = _lamb_moments_block(
                addresses, numbers, terms, span, WEIGHT, GRAD, MOMENT, MASTER, ACC,
                FULL=False,
            )  # fmt: skip
            weights += ww
            steps += uu
    tl.store(partials + 2 * chunk, tl.sum(weights, 0))
    tl.store(partials + 2 * chunk + 1, tl.sum(steps, 0))


@triton.jit
def _trust_ratio(squares, row, norm_low, norm_high, ratio_low, ratio_high):
    """Returns the factor on the step of a row, as `trust_ratios` does."""
    weight = tl.sqrt(tl.load(squares + 2 * row).to(tl.float64))
    step = tl.sqrt(tl.load(squares + 2 * row + 1).to(tl.float64))
    is_zero = (weight == 0) | (step == 0)
    ratio = clamp(weight, norm_low, norm_high) / tl.where(is_zero, 1.0, step)
    return tl.where(is_zero, 1.0, clamp(ratio, ratio_low, ratio_high))


@triton.jit
def _lamb_apply_block(
    addresses, shrink, rate, terms, span, seed,
    WEIGHT: tl.constexpr, MOMENT: tl.constexpr, MASTER: tl.constexpr,
    STOCHASTIC: tl.constexpr, ACC: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    w = load_weight(addresses, span, WEIGHT, MASTER, ACC, FULL)
    m = load(addresses[2], span, MOMENT, ACC, FULL)
    v = load(addresses[3], span, MOMENT, ACC, FULL)
    w = w * shrink - rate * _direction(w, m, v, terms, ACC)
    store_weight(w, addresses, span, seed, WEIGHT, MASTER, STOCHASTIC, FULL)


@triton.jit(do_not_specialize=_APPLY_NUMBERS)
def lamb_apply_kernel(
    table, chunks, squares,
    debias1, debias2, eps, inside, shrink, lr, norm_low, norm_high, ratio_low, ratio_high,
    ON_DEVICE: tl.constexpr, PER_ROW: tl.constexpr,
    WEIGHT: tl.constexpr, MOMENT: tl.constexpr, MASTER: tl.constexpr,
    ADAPTS: tl.constexpr, STOCHASTIC: tl.constexpr,
    ACC: tl.constexpr, BLOCK: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Updates the weights by LAMB, given the squared norms of weights and steps."""
    # From the last chunk on: the first pass left the end of the table in the cache.
    chunk = tl.num_programs(0) - 1 - tl.program_id(0)
    row, start, numel = place_of(chunks, chunk, table, BLOCK * NUM_BLOCKS)
    addresses = addresses_of(table, row)
    seed = seed_of(table, row)
    terms = (
        number(debias1, row, 0, ON_DEVICE, PER_ROW, ACC),
        number(debias2, row, 1, ON_DEVICE, PER_ROW, ACC),
        number(eps, row, 2, ON_DEVICE, PER_ROW, ACC),
        number(inside, row, 3, ON_DEVICE, PER_ROW, ACC),
    )
    factor = number(shrink, row, 4, ON_DEVICE, PER_ROW, ACC)
    rate = number(lr, row, 5, ON_DEVICE, PER_ROW, tl.float64)
    if ADAPTS:
        rate *= _trust_ratio(
            squares,
            row,
            number(norm_low, row, 6, ON_DEVICE, PER_ROW, tl.float64),
            number(norm_high, row, 7, ON_DEVICE, PER_ROW, tl.float64),
            number(ratio_low, row, 8, ON_DEVICE, PER_ROW, tl.float64),
            number(ratio_high, row, 9, ON_DEVICE, PER_ROW, tl.float64),
        )
    rate = rate.to(ACC)
    for block in range(NUM_BLOCKS):
        first = start + block * BLOCK
        span = (first, tl.arange(0, BLOCK), numel)
        if is_full(addresses, first, numel, BLOCK):
            _lamb_apply_block(
                addresses, factor, rate, terms, span, seed, WEIGHT, MOMENT, MASTER,
                STOCHASTIC, ACC, FULL=True,
            )  # fmt: skip
        elif first < numel:
            _lamb_apply_block(
                addresses, factor, rate, terms, span, seed, WEIGHT, MOMENT, MASTER,
                STOCHASTIC, ACC, FULL=False,
            )  # fmt: skip


@triton.jit
def grad_squares_kernel(
    table, chunks, partials,
    GRAD: tl.constexpr, BLOCK: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Sums the squares of a chunk's gradients, in float64: no finite one overflows."""
    chunk = tl.program_id(0)
    row, start, numel = place_of(chunks, chunk, table, BLOCK * NUM_BLOCKS)
    addresses = addresses_of(table, row)
    squares = tl.zeros((BLOCK,), tl.float64)
    for block in range(NUM_BLOCKS):
        first = start + block * BLOCK
        span = (first, tl.arange(0, BLOCK), numel)
        if is_full(addresses, first, numel, BLOCK):
            g = load(addresses[1], span, GRAD, tl.float64, FULL=True)
            squares += g * g
        elif first < numel:
            g = load(addresses[1], span, GRAD, tl.float64, FULL=False)
            squares += g * g
    tl.store(partials + chunk, tl.sum(squares, 0))


@triton.jit
def sum_chunks_kernel(
    partials, first_chunks, sums, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Adds the sums of a row's chunks, always in the same order, in float64."""
    row = tl.program_id(0)
    column = tl.program_id(1)
    chunk = tl.load(first_chunks + row)
    end = tl.load(first_chunks + row + 1)
    total = tl.zeros((BLOCK,), tl.float64)
    while chunk < end:
        chunks = chunk + tl.arange(0, BLOCK)
        parts = tl.load(
            partials + chunks * WIDTH + column, mask=chunks < end, other=0.0
        )
        total += parts.to(tl.float64)
        chunk += BLOCK
    tl.store(sums + row * WIDTH + column, tl.sum(total, 0))
