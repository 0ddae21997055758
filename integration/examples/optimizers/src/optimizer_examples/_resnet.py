"""A small ResNet for the digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional as F  # noqa: N812

if TYPE_CHECKING:
    from torch import Tensor


class _Residual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, padding=1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Three residual blocks with BatchNorm, pooled into ten classes.

    Args:
        width: Channels of the first convolution; doubled in the second block.

    Example:
        >>> import torch
        >>> ResNet(4)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(self, width: int) -> None:
        """Creates the layers."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            _Residual(width, width, 1),
            _Residual(width, 2 * width, 2),
            _Residual(2 * width, 2 * width, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * width, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Returns logits, batch x 10, of images, batch x 1 x 8 x 8."""
        return self.layers(images)  # type: ignore[no-any-return]
