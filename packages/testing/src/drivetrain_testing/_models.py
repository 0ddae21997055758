"""The small models that contract suites train, always the same for the same seed."""

from __future__ import annotations

import torch
from torch import nn


class TiedModel(nn.Module):
    """A model with what makes state hard: tied weights, buffers, odd sizes, bf16.

    It has an attribute called `module`, as a user's model may.
    """

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.up = nn.Linear(7, 3, bias=False)
        self.tied = nn.Linear(7, 3, bias=False)
        self.tied.weight = self.up.weight
        self.low = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Returns one number for each row."""
        hidden_BH = self.norm(self.module(x_BD)).relu()
        out_BO: torch.Tensor = self.up(hidden_BH) + self.tied(hidden_BH).sin()
        out_BO = out_BO + self.low
        return out_BO.sum(1)


class Block(nn.Module):
    """A model that FSDP2 can shard: odd sizes, and no statistics of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(5, 7)
        self.out = nn.Linear(7, 1)

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Returns one number for each row."""
        out_BO: torch.Tensor = self.out(self.module(x_BD).tanh())
        return out_BO.sum(1)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Returns an optimizer of two groups, with state of several kinds."""
    parameters = list(model.parameters())
    groups = [
        {"params": parameters[:1], "lr": 1e-2},
        {"params": parameters[1:], "lr": 3e-3, "weight_decay": 0.1},
    ]
    return torch.optim.AdamW(groups, amsgrad=True)


def make_trained(
    num_steps: int, seed: int = 0
) -> tuple[TiedModel, torch.optim.Optimizer]:
    """Returns a model and its optimizer after some steps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TiedModel()
        optimizer = make_optimizer(model)
        for step in range(num_steps):
            step_once(model, optimizer, step)
    return model, optimizer


def step_once(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: int
) -> torch.Tensor:
    """Trains one step on the batch of that number, and returns the loss."""
    generator = torch.Generator().manual_seed(1000 + step)
    x_BD = torch.randn(8, 5, generator=generator)
    optimizer.zero_grad()
    loss: torch.Tensor = model(x_BD).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def tensors_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Says whether two tensors are equal to the bit, NaN included."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    one, other = one.detach().cpu().contiguous(), other.detach().cpu().contiguous()
    return torch.equal(
        one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)
    )
