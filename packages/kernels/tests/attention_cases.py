"""Attention written out with loops, and tensors for it."""

import itertools

import torch
from kernel_checks import normal

__all__ = ["PACKED", "TOKENS", "attend_by_loops", "packed_by_loops", "qkv"]

# Sequences of 5, 0, 35 and 21 tokens, and three tokens that belong to none.
PACKED = torch.tensor([0, 5, 5, 40, 61])
TOKENS = 64


def qkv(num_queries=9, num_keys=9, heads=(2, 2), batch=2, dim=8, dtype=torch.float64):
    """Queries, keys and values of a batch; without one with `batch=None`."""
    lead = () if batch is None else (batch,)
    return normal(
        (*lead, num_queries, heads[0], dim),
        *((*lead, num_keys, heads[1], dim),) * 2,
        dtype=dtype,
    )


def attend_by_loops(q, k, v, *, causal=True, window=None, softcap=None, scale=None):
    """One query after the other, by the definition."""
    groups = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(groups, 2) for t in (k, v))
    left, right = window if isinstance(window, tuple) else (window and window - 1,) * 2
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    rows = []
    for i in range(q.shape[1]):
        place = i + k.shape[1] - q.shape[1]
        low = 0 if left is None else max(0, place - left)
        high = k.shape[1] if right is None else max(0, place + right + 1)
        high = min(high, max(0, place + 1)) if causal else high
        scores = torch.einsum("bhd,bkhd->bhk", q[:, i], k[:, low:high]) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        rows.append(torch.einsum("bhk,bkhd->bhd", scores.softmax(-1), v[:, low:high]))
    return torch.stack(rows, 1)


def packed_by_loops(q, k, v, **options):
    """Each sequence of PACKED for itself, and zeros for what belongs to none."""
    bounds = PACKED.tolist()
    parts = [
        attend_by_loops(q[None, a:b], k[None, a:b], v[None, a:b], **options)[0]
        for a, b in itertools.pairwise(bounds)
        if b > a
    ]
    return torch.cat([*parts, 0.0 * q[bounds[-1] :]])
