"""Trains in steps of a tenth of a second, as something that is ended in the middle."""

import time

import torch
from torch.utils.data import DataLoader, TensorDataset

from drivetrain_core import accelerate


def loss(output, batch):
    """Takes its time."""
    time.sleep(0.1)
    return torch.nn.functional.cross_entropy(output, batch[1])


torch.manual_seed(0)
samples = TensorDataset(torch.randn(256, 64), torch.randint(8, (256,)))
accelerated = accelerate(
    torch.nn.Linear(64, 8),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    DataLoader(samples, batch_size=16),
    loss,
)
for batch in accelerated.loader:
    accelerated.train_step(batch)
