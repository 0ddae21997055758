"""An image classifier on scikit-learn's digits: 1,797 images of 8 x 8 pixels.

Run it as `python -m drivetrain_search.examples.digits`. It searches for a plan, trains
under it, and prints the accuracy on held-out images.
"""

from __future__ import annotations

import argparse
import sys
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from drivetrain_core import MissingLibraryError, accelerate

if TYPE_CHECKING:
    from collections.abc import Sequence


class DigitsNet(nn.Module):
    """Three convolutions with GroupNorm, pooled into ten classes.

    Args:
        width: Channels of the first convolution.

    Example:
        >>> DigitsNet()(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(self, width: int = 32) -> None:
        """Creates the layers."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1, stride=2),
            nn.GroupNorm(4, 2 * width),
            nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, padding=1),
            nn.GroupNorm(4, 4 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Returns logits, batch x 10, of images, batch x 1 x 8 x 8."""
        return self.layers(images)  # type: ignore[no-any-return]


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """Returns training and held-out images with their labels.

    Raises:
        MissingLibraryError: scikit-learn is not installed; the message says how to.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        message = (
            "the digits need scikit-learn: pip install 'drivetrain-search[examples]'"
        )
        raise MissingLibraryError(message) from error
    digits = datasets.load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.long)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:1500], order[1500:]
    return (
        TensorDataset(images[train], labels[train]),
        TensorDataset(images[test], labels[test]),
    )


def loss(logits: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Returns the mean cross-entropy."""
    return F.cross_entropy(logits, batch[1])


@torch.no_grad()
def accuracy(model: nn.Module, dataset: TensorDataset, device: torch.device) -> float:
    """Returns the share of images that the model names right."""
    images, labels = dataset.tensors
    return float((model(images.to(device)).argmax(1).cpu() == labels).float().mean())


def main(argv: Sequence[str] | None = None) -> int:
    """Searches, trains, and prints the plan and the accuracy."""
    parser = argparse.ArgumentParser(
        prog="drivetrain_search.examples.digits",
        description=(__doc__ or "").split("\n", 1)[0],
        allow_abbrev=False,
    )
    parser.add_argument("--budget", default="90s", help="of the search")
    parser.add_argument("--steps", type=int, default=200, help="training steps")
    arguments = parser.parse_args(argv)
    train, test = load_digits()
    accelerated = accelerate(
        DigitsNet,
        lambda parameters: torch.optim.AdamW(parameters, lr=2e-3),
        DataLoader(train, batch_size=128, shuffle=True, drop_last=True),
        loss,
        budget=arguments.budget,
    )
    for batch in islice(accelerated.batches(), arguments.steps):
        accelerated.train_step(batch)
    share = accuracy(accelerated.module, test, accelerated.device)
    sys.stdout.write(f"plan: {accelerated.plan}\nheld-out accuracy: {share:.1%}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
