# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Triton kernels of attention: forward, and one backward kernel for each result.

The forward keeps no scores, only the logarithm of each row's denominator (Dao et al. 2022,
https://arxiv.org/abs/2205.14135); blocks of keys outside a window are never loaded. The
gradient of the queries has programs for blocks of queries, that of keys and values for
blocks of keys: each value is written once, so that no atomics are needed and the order of
the sums never changes.

Logarithms are to the base 2. A distance is a key's position less the query's.

Importing this module imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from drivetrain_kernels._triton_blocks import round_to
from drivetrain_kernels.ops._triton_cross_entropy import soft_capped

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _place(CU, num_blocks, num_sharing, HEADS: tl.constexpr, PACKED: tl.constexpr,
           BLOCK: tl.constexpr):  # fmt: skip
    """Returns block, batch and head of a program.

    All lie on the first axis of the grid: the others end at 65,535. Where packed sequences
    share the blocks of a head, those of sequence i begin with number CU[i] // BLOCK + i,
    which leaves each one as many as it has, and at most one more.
    """
    program = tl.program_id(0)
    row, block = program // num_blocks, program % num_blocks
    batch, head = row // HEADS, row % HEADS
    if PACKED:
        low, high = num_sharing * 0, num_sharing
        while high - low > 1:
            middle = (low + high) // 2
            is_before = tl.load(CU + middle).to(tl.int32) // BLOCK + middle <= block
            low = tl.where(is_before, middle, low)
            high = tl.where(is_before, high, middle)
        shares = num_sharing > 0
        block -= tl.where(shares, tl.load(CU + low).to(tl.int32) // BLOCK + low, 0)
        batch, head = tl.where(shares, low, batch), tl.where(shares, row, head)
    return block, batch.to(tl.int64), head.to(tl.int64)


@triton.jit
def _sequence(CU, batch, length, PACKED: tl.constexpr):
    """Returns a sequence's first token in its tensor, and its length."""
    if PACKED:
        first = tl.load(CU + batch).to(tl.int64)
        return first, (tl.load(CU + batch + 1).to(tl.int64) - first).to(tl.int32)
    return batch * 0, length


@triton.jit
def _tile(START, rows, stride, length, HEAD: tl.constexpr, BLOCK_D: tl.constexpr,
          DOT: tl.constexpr):  # fmt: skip
    """Loads rows of one head; rows and columns outside are zero."""
    column = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < length) & (column[None, :] < HEAD)
    place = START + rows[:, None].to(tl.int64) * stride + column[None, :]
    return tl.load(place, mask=inside, other=0.0).to(DOT)


@triton.jit
def _store(START, rows, stride, length, value, HEAD: tl.constexpr,
           BLOCK_D: tl.constexpr, DTYPE: tl.constexpr):  # fmt: skip
    column = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < length) & (column[None, :] < HEAD)
    place = START + rows[:, None].to(tl.int64) * stride + column[None, :]
    tl.store(place, round_to(value, DTYPE), mask=inside)


@triton.jit
def _scores(q, k, scale, CAP: tl.constexpr, ACC: tl.constexpr):
    """Returns scores to the base 2, and the slope of their cap, if there is one."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee", out_dtype=ACC) * scale
    slope = s
    if CAP > 0.0:
        s = soft_capped(s, CAP)
        slope = 1.0 - (s / CAP) * (s / CAP)
    return s * LOG2_E, slope


@triton.jit
def _seen(query, key, num_queries, num_keys, left, right, HAS_LEFT: tl.constexpr,
          HAS_RIGHT: tl.constexpr):  # fmt: skip
    """Returns whether queries see keys."""
    distance = key[None, :] - (query[:, None] + num_keys - num_queries)
    seen = (query[:, None] < num_queries) & (key[None, :] < num_keys)
    if HAS_LEFT:
        seen = seen & (distance >= -left)
    if HAS_RIGHT:
        seen = seen & (distance <= right)
    return seen


@triton.jit
def _key_range(first, num_queries, num_keys, left, right, HAS_LEFT: tl.constexpr,
               HAS_RIGHT: tl.constexpr, BLOCK_M: tl.constexpr,
               BLOCK_N: tl.constexpr):  # fmt: skip
    """Returns the first and the end of the keys that a block of queries sees."""
    place = first + num_keys - num_queries
    low, high = num_keys * 0, num_keys
    if HAS_LEFT:
        low = tl.maximum(0, place - left) // BLOCK_N * BLOCK_N
    if HAS_RIGHT:
        high = tl.minimum(num_keys, place + BLOCK_M + right)
    return low, high


@triton.jit
def forward_kernel(
    Q, K, V, OUT, LSE, CU_Q, CU_K,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head,
    out_batch, out_row, out_head, lse_batch, lse_head,
    num_queries, num_keys, left, right, num_blocks, num_sharing, scale,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr, PACKED: tl.constexpr, CAP: tl.constexpr,
    HEAD: tl.constexpr, DTYPE: tl.constexpr, DOT: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Computes the output of one block of queries of one head.

    Strides are those of batch, row and head of each tensor; of LSE, the rows'
    log-denominators, of batch and head. CU_Q and CU_K are offsets of packed sequences.
    """
    block, batch, head = _place(CU_Q, num_blocks, num_sharing, HEADS, PACKED, BLOCK_M)
    first_q, num_queries = _sequence(CU_Q, batch, num_queries, PACKED)
    first_k, num_keys = _sequence(CU_K, batch, num_keys, PACKED)
    first = block * BLOCK_M
    if first >= num_queries:
        return
    Q += batch * q_batch + first_q * q_row + head * q_head
    K += batch * k_batch + first_k * k_row + head // GROUPS * k_head
    V += batch * v_batch + first_k * v_row + head // GROUPS * v_head
    OUT += batch * out_batch + first_q * out_row + head * out_head
    LSE += batch * lse_batch + head * lse_head + first_q
    query = first + tl.arange(0, BLOCK_M)
    q = _tile(Q, query, q_row, num_queries, HEAD, BLOCK_D, DOT)
    largest = tl.full([BLOCK_M], -float("inf"), ACC)
    total = tl.zeros([BLOCK_M], ACC)
    out = tl.zeros([BLOCK_M, BLOCK_D], ACC)
    low, high = _key_range(first, num_queries, num_keys, left, right, HAS_LEFT,
                           HAS_RIGHT, BLOCK_M, BLOCK_N)  # fmt: skip
    for start in range(low, high, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        k = _tile(K, key, k_row, num_keys, HEAD, BLOCK_D, DOT)
        s, _ = _scores(q, k, scale, CAP, ACC)
        seen = _seen(
            query, key, num_queries, num_keys, left, right, HAS_LEFT, HAS_RIGHT
        )
        s = tl.where(seen, s, -float("inf"))
        new = tl.maximum(largest, tl.max(s, 1))
        base = tl.where(new == -float("inf"), 0.0, new)
        p = tl.exp2(s - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(p, 1)
        v = _tile(V, key, v_row, num_keys, HEAD, BLOCK_D, DOT)
        update = tl.dot(p.to(DOT), v, input_precision="ieee", out_dtype=ACC)
        out = out * shrink[:, None] + update
        largest = new
    is_blind = total == 0.0
    out = out / tl.where(is_blind, 1.0, total)[:, None]
    lse = tl.where(is_blind, 0.0, largest + tl.log2(tl.where(is_blind, 1.0, total)))
    _store(OUT, query, out_row, num_queries, out, HEAD, BLOCK_D, DTYPE)
    tl.store(LSE + query, lse, mask=query < num_queries)


@triton.jit
def backward_queries_kernel(
    Q, K, V, DOUT, LSE, DELTA, DQ, CU_Q, CU_K,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head,
    dout_batch, dout_row, dout_head, dq_batch, dq_row, dq_head, lse_batch, lse_head,
    num_queries, num_keys, left, right, num_blocks, num_sharing, scale,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr, PACKED: tl.constexpr, CAP: tl.constexpr,
    HEAD: tl.constexpr, DTYPE: tl.constexpr, DOT: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Computes the gradient of one block of queries of one head.

    LSE is what the forward kept, DELTA the product of each output row with its gradient,
    with the strides of LSE.
    """
    block, batch, head = _place(CU_Q, num_blocks, num_sharing, HEADS, PACKED, BLOCK_M)
    first_q, num_queries = _sequence(CU_Q, batch, num_queries, PACKED)
    first_k, num_keys = _sequence(CU_K, batch, num_keys, PACKED)
    first = block * BLOCK_M
    if first >= num_queries:
        return
    Q += batch * q_batch + first_q * q_row + head * q_head
    K += batch * k_batch + first_k * k_row + head // GROUPS * k_head
    V += batch * v_batch + first_k * v_row + head // GROUPS * v_head
    DOUT += batch * dout_batch + first_q * dout_row + head * dout_head
    DQ += batch * dq_batch + first_q * dq_row + head * dq_head
    rows = batch * lse_batch + head * lse_head + first_q
    query = first + tl.arange(0, BLOCK_M)
    q = _tile(Q, query, q_row, num_queries, HEAD, BLOCK_D, DOT)
    dout = _tile(DOUT, query, dout_row, num_queries, HEAD, BLOCK_D, DOT)
    is_query = query < num_queries
    lse = tl.load(LSE + rows + query, mask=is_query, other=0.0)
    delta = tl.load(DELTA + rows + query, mask=is_query, other=0.0)
    dq = tl.zeros([BLOCK_M, BLOCK_D], ACC)
    low, high = _key_range(first, num_queries, num_keys, left, right, HAS_LEFT,
                           HAS_RIGHT, BLOCK_M, BLOCK_N)  # fmt: skip
    for start in range(low, high, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        k = _tile(K, key, k_row, num_keys, HEAD, BLOCK_D, DOT)
        v = _tile(V, key, v_row, num_keys, HEAD, BLOCK_D, DOT)
        s, slope = _scores(q, k, scale, CAP, ACC)
        seen = _seen(
            query, key, num_queries, num_keys, left, right, HAS_LEFT, HAS_RIGHT
        )
        p = tl.where(seen, tl.exp2(s - lse[:, None]), 0.0)
        dp = tl.dot(dout, tl.trans(v), input_precision="ieee", out_dtype=ACC)
        ds = p * (dp - delta[:, None])
        if CAP > 0.0:
            ds *= slope
        dq += tl.dot(ds.to(DOT), k, input_precision="ieee", out_dtype=ACC)
    _store(DQ, query, dq_row, num_queries, dq * scale, HEAD, BLOCK_D, DTYPE)


@triton.jit
def backward_keys_kernel(
    Q, K, V, DOUT, LSE, DELTA, DK, DV, CU_Q, CU_K,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head,
    dout_batch, dout_row, dout_head, dk_batch, dk_row, dk_head, lse_batch, lse_head,
    num_queries, num_keys, left, right, num_blocks, num_sharing, scale,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr, PACKED: tl.constexpr, CAP: tl.constexpr,
    HEAD: tl.constexpr, DTYPE: tl.constexpr, DOT: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Computes the gradients of one block of keys and values of one of their heads.

    The strides of DK are those of DV too.
    """
    # Of the keys.
    block, batch, head = _place(CU_K, num_blocks, num_sharing, HEADS, PACKED, BLOCK_N)
    first_q, num_queries = _sequence(CU_Q, batch, num_queries, PACKED)
    first_k, num_keys = _sequence(CU_K, batch, num_keys, PACKED)
    first = block * BLOCK_N
    if first >= num_keys:
        return
    K += batch * k_batch + first_k * k_row + head * k_head
    V += batch * v_batch + first_k * v_row + head * v_head
    at = batch * dk_batch + first_k * dk_row + head * dk_head
    key = first + tl.arange(0, BLOCK_N)
    k = _tile(K, key, k_row, num_keys, HEAD, BLOCK_D, DOT)
    v = _tile(V, key, v_row, num_keys, HEAD, BLOCK_D, DOT)
    dk = tl.zeros([BLOCK_N, BLOCK_D], ACC)
    dv = tl.zeros([BLOCK_N, BLOCK_D], ACC)
    place = first - (num_keys - num_queries)  # of the query across from the first key
    low, high = num_queries * 0, num_queries
    if HAS_RIGHT:
        low = tl.maximum(0, place - right) // BLOCK_M * BLOCK_M
    if HAS_LEFT:
        high = tl.minimum(num_queries, place + BLOCK_N + left)
    for member in range(GROUPS):
        head_q = head * GROUPS + member
        q_start = Q + batch * q_batch + first_q * q_row + head_q * q_head
        dout_start = DOUT + batch * dout_batch + first_q * dout_row + head_q * dout_head
        rows = batch * lse_batch + head_q * lse_head + first_q
        for start in range(low, high, BLOCK_M):
            query = start + tl.arange(0, BLOCK_M)
            is_query = query < num_queries
            q = _tile(q_start, query, q_row, num_queries, HEAD, BLOCK_D, DOT)
            dout = _tile(dout_start, query, dout_row, num_queries, HEAD, BLOCK_D, DOT)
            lse = tl.load(LSE + rows + query, mask=is_query, other=0.0)
            delta = tl.load(DELTA + rows + query, mask=is_query, other=0.0)
            s, slope = _scores(q, k, scale, CAP, ACC)
            seen = _seen(query, key, num_queries, num_keys, left, right, HAS_LEFT,
                         HAS_RIGHT)  # fmt: skip
            p = tl.where(seen, tl.exp2(s - lse[:, None]), 0.0)
            dv += tl.dot(
                tl.trans(p.to(DOT)), dout, input_precision="ieee", out_dtype=ACC
            )
            dp = tl.dot(dout, tl.trans(v), input_precision="ieee", out_dtype=ACC)
            ds = p * (dp - delta[:, None])
            if CAP > 0.0:
                ds *= slope
            dk += tl.dot(tl.trans(ds.to(DOT)), q, input_precision="ieee", out_dtype=ACC)
    _store(DK + at, key, dk_row, num_keys, dk * scale, HEAD, BLOCK_D, DTYPE)
    _store(DV + at, key, dk_row, num_keys, dv, HEAD, BLOCK_D, DTYPE)
