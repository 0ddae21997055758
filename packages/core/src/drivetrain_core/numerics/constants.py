"""Values that hide what is done with them: all alike, or zero."""

from __future__ import annotations

import torch


def without_constants(
    tensor: torch.Tensor, generator: torch.Generator, *, zeros: bool = True
) -> torch.Tensor:
    """Returns a tensor with drawn numbers added where its values hide what is done with them.

    A product with zeros has no gradient, and a sum over equal values is the same in any
    order of them.

    Args:
        tensor: Any; one that holds no dense real numbers is returned as it is.
        generator: Draws the numbers, on the CPU.
        zeros: Whether single zeros count, beside rows that are all alike.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> drawn = without_constants(torch.tensor([[0.0, 2.0], [3.0, 4.0]]), generator)
        >>> drawn.ne(torch.tensor([[0.0, 2.0], [3.0, 4.0]])).tolist()
        [[True, False], [False, False]]
    """
    plain = tensor.layout is torch.strided and tensor.element_size() > 1
    if tensor.is_meta or not plain or not tensor.is_floating_point():
        return tensor
    first = tensor[:1] if tensor.dim() and len(tensor) > 1 else tensor.flatten()[:1]
    hides = ((tensor == first).all() & (tensor.numel() > 1)) | ((tensor == 0) & zeros)
    if not bool(hides.any()):
        return tensor
    scale = tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 0.1
    noise = torch.randn(tensor.shape, generator=generator).mul_(scale).to(tensor)
    return torch.where(hides, tensor + noise, tensor)
