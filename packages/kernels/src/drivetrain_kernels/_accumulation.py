"""In which dtype sums are kept."""

from __future__ import annotations

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype that sums over values of a dtype, and losses, are kept in.

    Args:
        dtype: That of the tensors.

    Example:
        >>> accumulation_dtype(torch.bfloat16), accumulation_dtype(torch.float64)
        (torch.float32, torch.float64)
    """
    return torch.float64 if dtype == torch.float64 else torch.float32
