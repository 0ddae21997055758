"""Attention in plain operators: the reference, and blocks along the diagonal.

Shapes: B batch, S sequence (Sq queries, Sk keys), H heads (Hq of queries, Hk of keys and
values), D head dimension, N blocks, C queries and L keys of a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._check import replicated_beside, without_autocast
from drivetrain_kernels._fast_path import once_differentiable
from drivetrain_kernels.ops._attention_band import (
    Band,
    Packed,
    cached_mask,
    shares_keys,
)

if TYPE_CHECKING:
    from drivetrain_kernels.ops._attention_options import AttentionOptions

MIN_BLOCK = 32
MAX_BLOCK = 256


def attend(
    q_BHSD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    mask: Tensor | None,
    options: AttentionOptions,
) -> Tensor:
    """Returns attention with the softmax in float32 or wider.

    Args:
        q_BHSD: Queries; their heads are a multiple of those of the keys.
        k_BHSD: Keys.
        v_BHSD: Values.
        mask: Whether a query sees a key; it broadcasts to [B, 1, Sq, Sk]. A query that
            sees none gets zeros.
        options: The scale, the cap and the dropout are taken from it.
    """
    groups = q_BHSD.shape[1] // k_BHSD.shape[1]
    wide = accumulation_dtype(q_BHSD.dtype)
    B, _, Sq, D = q_BHSD.shape
    q = q_BHSD.reshape(B, k_BHSD.shape[1], groups, Sq, D).to(wide)
    k = k_BHSD.unsqueeze(2).to(wide)
    v = v_BHSD.unsqueeze(2).to(wide)
    scores = (q @ k.transpose(-1, -2)) * options.scale
    softcap = options.softcap
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        mask = mask.unsqueeze(-3) if mask.dim() > 2 else mask
        # Not minus infinity: of a row that sees nothing it would make NaN.
        scores = scores.masked_fill(~mask, torch.finfo(wide).min)
    probabilities = scores.softmax(-1)
    if mask is not None:
        probabilities = probabilities.masked_fill(~mask, 0.0)
    probabilities = functional.dropout(probabilities, options.dropout_p)
    return (probabilities @ v).flatten(1, 2).to(q_BHSD.dtype)


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
) -> Tensor:
    """Returns attention with all scores and their mask in memory."""
    band, packed = options.band, options.packed
    num_queries, num_keys = q.shape[-3], k.shape[-3]
    mask: Tensor | None = None
    if packed is not None:
        mask = packed.mask(band, num_queries, num_keys)
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    elif not band.is_full:
        mask = band.mask(num_queries, num_keys, q.device)
    if mask is not None:
        mask = replicated_beside(q, mask)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    with without_autocast(q.device):
        out = attend(q, k, v, mask, options).transpose(1, 2)
    return out if packed is None else out.squeeze(0)


def blocked_attention(
    q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
) -> Tensor:
    """Returns windowed attention, computed for blocks of queries near the diagonal.

    A block of C queries is multiplied with the L = C + left + right keys that one of them
    may see, so that the cost is that of S x (C + window), not of S^2.
    """
    band, packed = options.band, options.packed
    assert band.left is not None
    assert band.right is not None
    if packed is not None:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    B, Sq, Hq, D = q.shape
    Sk = k.shape[1]
    size = block_size(band.left + band.right + 1)
    num_blocks = -(-Sq // size)
    before, after = -(-band.left // size), -(-band.right // size)
    span = before + 1 + after
    pads = (before * size - (Sk - Sq), (num_blocks + after) * size - Sq)
    q_NHCD = _windows(q, (0, num_blocks * size - Sq), size, 1)
    k_NHLD, v_NHLD = _windows(k, pads, size, span), _windows(v, pads, size, span)
    sizes = (Sq, Sk, size)
    mask_NCL = cached_mask(
        ("blocked", band, *sizes, q.device), lambda: _block_mask(band, *sizes, q.device)
    )
    if packed is not None:
        mask_NCL = mask_NCL & _same_sequence(packed, Sq, size, before, span)
    mask = mask_NCL.unsqueeze(1)
    if options.softcap is not None:
        with without_autocast(q.device):
            out = attend(q_NHCD, k_NHLD, v_NHLD, mask, options)
    else:
        made = functional.scaled_dot_product_attention(
            q_NHCD,
            k_NHLD,
            v_NHLD,
            mask,
            options.dropout_p,
            scale=options.scale,
            enable_gqa=shares_keys(Hq, k.shape[2]),
        )
        out = once_differentiable(made)
    out = out.reshape(num_blocks, B, Hq, size, D).permute(1, 0, 3, 2, 4)
    out = out.reshape(B, num_blocks * size, Hq, D).narrow(1, 0, Sq)
    if packed is None:
        return out
    is_token = torch.arange(Sq, device=q.device) < packed.cu_q[-1]
    return torch.where(is_token[:, None, None], out.squeeze(0), 0.0)


def _windows(x: Tensor, pads: tuple[int, int], size: int, span: int) -> Tensor:
    """Returns what each block sees, `span` blocks beside each other.

    The blocks are the batch of the result, and the batch lies among the heads, so that
    one mask of the blocks fits all of them.
    """
    padded = functional.pad(x, (0, 0, 0, 0, *pads))
    blocks_BNSHD = padded.reshape(len(x), padded.shape[1] // size, size, *x.shape[2:])
    num_windows = blocks_BNSHD.shape[1] - span + 1
    parts = [blocks_BNSHD[:, i : i + num_windows] for i in range(span)]
    windows = parts[0] if span == 1 else torch.cat(parts, dim=2)
    return windows.permute(1, 0, 3, 2, 4).flatten(1, 2)


def block_size(window: int) -> int:
    """Returns the queries of a block, for a window: a power of two near its half.

    Larger blocks look at more keys than the window has, smaller ones are too small for
    matrix products.

    Example:
        >>> [block_size(window) for window in (1, 256, 4096)]
        [32, 128, 256]
    """
    half = 1 << max(0, window // 2 - 1).bit_length()
    return min(MAX_BLOCK, max(MIN_BLOCK, half))


def _block_mask(
    band: Band, num_queries: int, num_keys: int, size: int, device: torch.device
) -> Tensor:
    """Returns whether a query of a block sees a key of its window, shape [N, C, L]."""
    assert band.left is not None
    assert band.right is not None
    num_blocks = -(-num_queries // size)
    before, after = -(-band.left // size), -(-band.right // size)
    query = torch.arange(size, device=device).unsqueeze(1)
    key = torch.arange(-before * size, (1 + after) * size, device=device)
    start = torch.arange(num_blocks, device=device)[:, None, None] * size
    place = start + key + (num_keys - num_queries)
    is_key = (place >= 0) & (place < num_keys)
    # What is padded to a whole block sees everything, so that nothing is divided by 0.
    is_padding = start + query >= num_queries
    return (band.covers(key - query) & is_key) | is_padding


def _same_sequence(
    packed: Packed, num_queries: int, size: int, before: int, span: int
) -> Tensor:
    """Returns whether query and key of a block are of one sequence, shape [N, C, L]."""
    num_blocks = -(-num_queries // size)
    device = packed.cu_q.device
    length = num_blocks * size
    token = torch.arange(-before * size, length + span * size, device=device)
    sequence = torch.bucketize(token, packed.cu_q[1:].long(), right=True)
    queries = sequence[before * size :][:length].view(num_blocks, size, 1)
    keys = sequence.unfold(0, span * size, size)[:num_blocks].unsqueeze(1)
    return queries == keys
