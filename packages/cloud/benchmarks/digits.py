"""scikit-learn's digits: 1,797 images of 8 x 8 pixels, and the loss of who names them."""

import torch
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import TensorDataset


def load_digits():
    """Returns training and held-out images with their labels."""
    from sklearn import datasets

    digits = datasets.load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.long)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:1500], order[1500:]
    return (
        TensorDataset(images[train], labels[train]),
        TensorDataset(images[test], labels[test]),
    )


def loss(logits, batch):
    """Returns the mean cross-entropy."""
    return F.cross_entropy(logits, batch[1])
