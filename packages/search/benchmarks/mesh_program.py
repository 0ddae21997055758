"""A small transformer, and its data, on which meshes are measured."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as f

WIDTH, HEADS, BLOCKS, VOCAB, LENGTH, BATCH = 128, 4, 4, 256, 32, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_one, self.norm_two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm_one(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(f.gelu(self.up(self.norm_two(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build():
    return Model()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def batches(number=8):
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randint(VOCAB, (BATCH, LENGTH), generator=generator),
            torch.randint(VOCAB, (BATCH, LENGTH), generator=generator),
        )
        for _ in range(number)
    ]


def loss(output, batch):
    return f.cross_entropy(output.flatten(0, 1), batch[1].flatten())
