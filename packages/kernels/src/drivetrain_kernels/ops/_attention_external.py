"""Attention by kernels of torch and of FlashAttention, where they are installed."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from drivetrain_kernels._available import (
    capability_of,
    library_missing,
    torch_function_missing,
)
from drivetrain_kernels._fast_path import once_differentiable
from drivetrain_kernels.ops._attention_band import (
    Band,
    Packed,
    cached_mask,
    shares_keys,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_kernels.ops._attention_options import AttentionOptions

VARLEN = "torch.nn.attention.varlen.varlen_attn"
# The module of each FlashAttention, newest kernels first, and the least and the first too
# large compute capability that it is for.
FLASH = (
    ("flash_attn_interface", (9, 0), (10, 0)),  # FlashAttention 3
    ("flash_attn.cute", (9, 0), (13, 0)),  # FlashAttention 4
    ("flash_attn", (8, 0), (13, 0)),  # FlashAttention 2
)


def sdpa_attention(
    q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
) -> Tensor:
    """Returns attention by torch's `scaled_dot_product_attention`."""
    band = options.band
    num_queries, num_keys = q.shape[1], k.shape[1]
    mask = None
    is_causal = False
    # A branch, as a compiler's sizes may be symbols, and a comparison of them no bool.
    if band.is_causal and num_queries == num_keys:
        is_causal = True
    elif band.is_causal and num_queries == 1:
        pass  # one more token of a generation sees all keys: kernels are best unmasked
    elif not band.is_full:
        mask = cached_mask(
            (band, num_queries, num_keys, q.device),
            lambda: band.mask(num_queries, num_keys, q.device),
        )
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        dropout_p=options.dropout_p,
        is_causal=is_causal,
        scale=options.scale,
        enable_gqa=shares_keys(q.shape[2], k.shape[2]),
    )
    return once_differentiable(out).transpose(1, 2)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
@functools.cache
def varlen_missing() -> str | None:
    """Returns why torch's attention of variable length cannot be used, or None."""
    missing: str | None = torch_function_missing(VARLEN)
    if missing is not None:
        return missing
    accepted = inspect.signature(_varlen_attn()).parameters
    lacking = [n for n in ("window_size", "scale") if n not in accepted]
    if lacking:
        return f"torch {torch.__version__} has a varlen_attn without {lacking[0]}"
    return None


def _varlen_attn() -> Callable[..., Any]:
    function: Callable[..., Any] = importlib.import_module(
        VARLEN.rpartition(".")[0]
    ).varlen_attn
    return function


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _varlen_options() -> frozenset[str]:
    return frozenset(inspect.signature(_varlen_attn()).parameters)


def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
) -> Tensor:
    """Returns attention by torch's `varlen_attn`."""
    shape, packed = q.shape, options.packed
    if packed is None:
        packed = _packed_batch(q, k)
        q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    extra: dict[str, Any] = {}
    if shares_keys(q.shape[1], k.shape[1]):
        if "enable_gqa" in _varlen_options():
            extra["enable_gqa"] = True
        else:  # before torch 2.12
            num_sharing = q.shape[1] // k.shape[1]
            k, v = (t.repeat_interleave(num_sharing, 1) for t in (k, v))
    out: Tensor = _varlen_attn()(
        q,
        k,
        v,
        packed.cu_q.int(),
        packed.cu_k.int(),
        packed.max_seqlen,
        packed.max_seqlen,
        scale=options.scale,
        window_size=_window_size(options.band),
        **extra,
    )
    return out.view(shape)


def _packed_batch(q: Tensor, k: Tensor) -> Packed:
    """Returns a batch of sequences of one length as sequences that are packed."""
    num_sequences, num_queries, num_keys = q.shape[0], q.shape[1], k.shape[1]
    count = torch.arange(num_sequences + 1, device=q.device, dtype=torch.int32)
    return Packed(
        count * num_queries,
        count * num_keys,
        max(num_queries, num_keys),
        num_queries == num_keys,
    )


def _window_size(band: Band) -> tuple[int, int]:
    return (
        -1 if band.left is None else band.left,
        -1 if band.right is None else band.right,
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
@functools.cache
def flash_missing() -> str | None:
    """Returns why no FlashAttention can be used, or None if one can."""
    return None if _flash_module() else "no FlashAttention for this GPU is installed"


@functools.cache
def _flash_module() -> str | None:
    here = torch.accelerator.current_accelerator(check_available=True)
    capability = capability_of(here.type) if here else (0, 0)
    for module, least, too_large in FLASH:
        if least <= capability < too_large and library_missing(module) is None:
            return module
    return None


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
) -> Tensor:
    """Returns attention by the FlashAttention that suits this GPU."""
    name = _flash_module()
    assert name is not None
    library = importlib.import_module(name)
    band, packed = options.band, options.packed
    given: dict[str, Any] = {
        "softmax_scale": options.scale,
        "causal": band.right == 0,
        "softcap": options.softcap or 0.0,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    if name == "flash_attn.cute":
        given["window_size"] = (band.left, band.right)
    else:
        given["window_size"] = _window_size(band)
    if options.dropout_p:
        given["dropout_p"] = options.dropout_p
    if packed is None:
        out = library.flash_attn_func(q, k, v, **given)
    else:
        out = library.flash_attn_varlen_func(
            q,
            k,
            v,
            cu_seqlens_q=packed.cu_q.int(),
            cu_seqlens_k=packed.cu_k.int(),
            max_seqlen_q=packed.max_seqlen,
            max_seqlen_k=packed.max_seqlen,
            **given,
        )
    result: Tensor = out[0] if isinstance(out, tuple) else out
    return result
