"""A small decoder, its samples, and what a program of a user is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

VOCABULARY, LENGTH, WIDTH, SAMPLES, BATCH = 17, 8, 16, 32, 8


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 32), nn.Linear(32, width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            f(x).unflatten(-1, (-1, 4)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm(x))
        return x + self.down(functional.gelu(self.up(self.second_norm(x))))


class Net(nn.Module):
    """A small decoder."""

    def __init__(self, make: Any = Block, blocks: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(make() for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def encode(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encode(tokens))


class Tokens(Dataset[Any]):
    """Samples that know their number."""

    def __init__(self, like: Any = None) -> None:
        generator = torch.Generator().manual_seed(5)
        self.tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH), generator=generator)
        self.targets = torch.randint(VOCABULARY, (SAMPLES, LENGTH), generator=generator)
        self.change = like

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        tokens, targets = self.tokens[index], self.targets[index]
        if self.change is not None:
            tokens = self.change(tokens)
        return tokens, targets, torch.tensor(index)


def cross_entropy(output: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), batch[1].flatten())


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3)


def numbers_of(batch: Any) -> list[int]:
    """Returns which samples a batch holds, as its last part says."""
    return (batch["number"] if isinstance(batch, dict) else batch[-1]).tolist()


@dataclass(kw_only=True)
class Case:
    """A program, and what is looked at besides its losses and weights."""

    model: nn.Module
    optimizer: Any = adamw
    data: Any = None
    loss: Any = cross_entropy
    forward: Any = None
    scheduler: Any = None
    max_grad_norm: float | None = None
    is_ordered: bool = True
    numbers: Any = numbers_of

    def __post_init__(self) -> None:
        if self.data is None:
            self.data = DataLoader(Tokens(), batch_size=BATCH)
