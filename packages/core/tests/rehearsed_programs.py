"""Small programs that plans are rehearsed on."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def pairs(number=4, size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, 6, generator=generator),
            torch.randn(size, 6, generator=generator),
        )
        for _ in range(number)
    ]


def squared(output, batch):
    return functional.mse_loss(output, batch[1])


def layered(blocks=2):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(blocks)]
    return nn.Sequential(*layers, nn.Linear(6, 6))


def summed(output, batch):
    return (output - batch[1]).square().sum()
