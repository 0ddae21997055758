"""The mixture of experts as a module."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from drivetrain_kernels._modules import linear_weight
from drivetrain_kernels.ops._moe import MoEResult, moe


class MoE(nn.Module):
    """`moe` with a router and experts.

    Args:
        width: The length of a token, H.
        inner: The inner width of an expert, I.
        num_experts: How many there are.
        top_k: See `moe`.
        normalize: Likewise.
        scores: Likewise.
        capacity: Likewise.
        impl: Likewise.
        device: Where the parameters lie.
        dtype: That of the parameters.

    Example:
        >>> layer = MoE(8, 16, num_experts=4, top_k=2)
        >>> result = layer(torch.randn(3, 5, 8))
        >>> result.output.shape, int(result.counts.sum())
        (torch.Size([3, 5, 8]), 30)
    """

    def __init__(
        self,
        width: int,
        inner: int,
        *,
        num_experts: int,
        top_k: int,
        normalize: bool = True,
        scores: str = "softmax",
        capacity: int | None = None,
        impl: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.top_k = top_k
        self.normalize = normalize
        self.scores = scores
        self.capacity = capacity
        self.impl = impl
        weight = functools.partial(linear_weight, device=device, dtype=dtype)
        self.router = weight(num_experts, width)
        self.w_gate = weight(num_experts, inner, width)
        self.w_up = weight(num_experts, inner, width)
        self.w_down = weight(num_experts, width, inner)

    def forward(self, x: Tensor) -> MoEResult:
        """Returns the output, the router's losses, and the experts' loads.

        Args:
            x: Tokens, `(..., width)`.
        """
        return moe(
            x,
            self.router,
            self.w_gate,
            self.w_up,
            self.w_down,
            top_k=self.top_k,
            normalize=self.normalize,
            scores=self.scores,
            capacity=self.capacity,
            impl=self.impl,
        )

    def extra_repr(self) -> str:
        """Returns the sizes, for printing."""
        num_experts, inner, width = self.w_gate.shape
        return f"{width}, {inner}, num_experts={num_experts}, top_k={self.top_k}"
