"""How tensors are made smaller for their way."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Compressor(Protocol):
    """Makes a tensor smaller, and large again; users may bring their own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns what is reduced, and what `decompress` must know."""

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns the reduced tensor as it was given to `compress`."""


class _Exact:
    dtype: torch.dtype | None = None

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        is_large = tensor.dtype in (torch.float32, torch.float64)
        if cls.dtype is None or not is_large:
            return tensor, None
        return tensor.to(cls.dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
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
        >>> wire, context = Compression.fp16.compress(torch.ones(2))
        >>> wire.dtype, Compression.fp16.decompress(wire, context).dtype
        (torch.float16, torch.float32)
    """

    none: Any = _Exact
    fp16: Any = _Half
    bf16: Any = _Brain
