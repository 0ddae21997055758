"""How tensors are made smaller for their way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor


class _Exact:
    dtype: torch.dtype | None = None

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        is_large = tensor.dtype in (torch.float32, torch.float64)
        if cls.dtype is None or not is_large:
            return tensor, None
        return tensor.to(cls.dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class _Half(_Exact):
    dtype = torch.float16


class _Brain(_Exact):
    dtype = torch.bfloat16


class Compression:
    """The choice of compressors.

    Attributes:
        none: Leaves tensors as they are.
        fp16: Sends float32 and float64 as float16.
        bf16: Sends float32 and float64 as bfloat16.

    Example:
        >>> small, ctx = Compression.fp16.compress(torch.ones(2))
        >>> small.dtype, Compression.fp16.decompress(small, ctx).dtype
        (torch.float16, torch.float32)
    """

    none = _Exact
    fp16 = _Half
    bf16 = _Brain
