"""Small models that the tests of the selector run, and samplers without a clock."""

import torch
from torch import nn


def mlp(width=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))


class Blocks(nn.Module):
    """Repeated blocks that are `nn.Sequential`, whose forward is torch's own."""

    def __init__(self, num=3):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(mlp() for _ in range(num))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class Branching(nn.Module):
    """Takes one of two ways, by its data."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        if x.sum() > 0:
            return self.one(x)
        return self.other(x).sin()


class Stateful(nn.Module):
    """Has everything that a step may change."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8)
        )
        self.calls = 0
        self.last = None

    def forward(self, x):
        self.calls += 1
        self.last = x
        return self.inner(x)
