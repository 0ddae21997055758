"""Random models on random meshes: equal to one process, or refused before the first step.

`python integration/tests/random_programs.py --number 200 --ranks 2 4`; `--first` goes on
from a seed. Each model is made of a seed: attention, convolutions, mixtures of experts,
tied and frozen parts, gates of zeros, blocks that differ in a flag.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from pathlib import Path
from typing import Any

import torch
from same_program import cell_of, judged
from small_decoder import LENGTH, VOCABULARY, Case
from torch import nn
from torch.nn import functional

from drivetrain_testing import run_ranks

MESHES: dict[int, list[list[Any]]] = {
    2: [
        ["ddp"],
        ["fsdp"],
        [("mesh", {"tensor": 2})],
        [("mesh", {"tensor": 2}), "sequence_parallel"],
        [("mesh", {"pipeline": 2}), ("micro_batch", 2)],
        [("mesh", {"context": 2})],
        [("mesh", {"shard": 2})],
        [("mesh", {"expert": 2})],
    ],
    4: [
        [("mesh", {"tensor": 2, "shard": 2})],
        [("mesh", {"tensor": 4})],
        [("mesh", {"pipeline": 2, "tensor": 2}), ("micro_batch", 2)],
        [("mesh", {"pipeline": 2, "shard": 2}), ("micro_batch", 2)],
        [("mesh", {"context": 2, "shard": 2})],
        [("mesh", {"pipeline": 4}), ("micro_batch", 4)],
        [("mesh", {"replicate": 2, "tensor": 2})],
    ],
}


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, bias: bool, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.q, self.k = nn.Linear(width, width, bias), nn.Linear(width, width, bias)
        self.v, self.o = nn.Linear(width, width, bias), nn.Linear(width, width, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[-1] // self.heads
        q, k, v = (
            part(x).unflatten(-1, (-1, size)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.is_causal
        )
        return self.o(mixed.transpose(1, 2).flatten(2))


class Convolution(nn.Module):
    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Conv1d(width, width, 3, padding=1, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Mlp(nn.Module):
    def __init__(self, width: int, wide: int, *, bias: bool, is_gated: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, wide, bias), nn.Linear(wide, width, bias)
        self.gate = nn.Linear(width, wide, bias) if is_gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gate is None:
            return self.down(functional.gelu(self.up(x)))
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    def __init__(self, width: int, wide: int, *, bias: bool) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(
            Mlp(width, wide, bias=bias, is_gated=False) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.router(x).softmax(-1)
        return sum(shares[..., i : i + 1] * e(x) for i, e in enumerate(self.experts))


class Block(nn.Module):
    def __init__(self, draw: random.Random, width: int, heads: int) -> None:
        super().__init__()
        bias = draw.random() < 0.5
        kind = nn.LayerNorm if draw.random() < 0.6 else nn.RMSNorm
        self.norms = nn.ModuleList(kind(width) for _ in range(2))
        if draw.random() < 0.75:
            causal = draw.random() < 0.7
            self.mix: nn.Module = Attention(width, heads, bias=bias, is_causal=causal)
        else:
            self.mix = Convolution(width, bias=bias)
        if draw.random() < 0.2:
            self.feed: nn.Module = Mixture(width, 32, bias=bias)
        else:
            self.feed = Mlp(width, 32, bias=bias, is_gated=draw.random() < 0.4)
        self.scale, self.is_parallel = 1.0, draw.random() < 0.2
        self.gate = nn.Parameter(torch.zeros(width)) if draw.random() < 0.2 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.mix(self.norms[0](x))
        if self.is_parallel:
            added = mixed + self.feed(self.norms[1](x))
        else:
            added = mixed + self.feed(self.norms[1](x + mixed))
        added = added * self.scale
        return x + (added if self.gate is None else added * self.gate)


class Model(nn.Module):
    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        heads = draw.choice((2, 4, 4, 8))
        width = heads * draw.choice((2, 4, 6))
        number = draw.choice((2, 3, 4, 4))
        alike = draw.getrandbits(32)
        self.embed = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(0.1 * torch.randn(LENGTH, width))
        self.has_places = draw.random() < 0.5
        self.blocks = nn.ModuleList(
            Block(random.Random(alike), width, heads) for _ in range(number)
        )
        if draw.random() < 0.3:
            self.blocks[draw.randrange(number)].scale = 0.5
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
        if draw.random() < 0.3:
            self.head.weight = self.embed.weight
        for part in (self.embed, *self.blocks, self.norm):
            if draw.random() < 0.12:
                part.requires_grad_(False)
        self.places.requires_grad_(self.has_places)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        if self.has_places:
            x = x + self.places[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make(seed: int) -> Case:
    """Returns the program of a seed."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    model = Model(draw)
    rate = draw.choice((0.02, 0.05))
    if draw.random() < 0.5:
        return Case(model=model, optimizer=lambda p: torch.optim.SGD(p, lr=rate))
    return Case(model=model, max_grad_norm=draw.choice((None, 0.5)))


def verdicts(seed: int, strategies: list[list[Any]]) -> list[str]:
    """Returns the verdict of each strategy on a seed's program; on each rank."""
    return [judged(cell_of(lambda: make(seed), each)) for each in strategies]


def main() -> int:
    """Prints what is not the same, and counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--meshes", type=int, default=3, help="meshes for each model")
    given = parser.parse_args()
    counts = {"same": 0, "refused": 0, "WRONG": 0}
    sizes = itertools.cycle(given.ranks)
    for seed in range(given.first, given.first + given.number):
        size = next(sizes)
        strategies = random.Random(seed).sample(MESHES[size], given.meshes)
        try:
            found = list(
                zip(
                    *run_ranks(verdicts, size, seed, strategies, timeout_s=200),
                    strict=True,
                )
            )
        except Exception as error:  # noqa: BLE001
            found = [(f"WRONG: {str(error)[-200:]!r}",)]
        for strategy, said in itertools.zip_longest(strategies, found, fillvalue=()):
            worst = next(
                (v for v in said if v != "same"), "same" if said else "refused: not run"
            )
            counts[worst.partition(":")[0]] += 1
            if worst != "same":
                print(seed, strategy, worst, sep=" | ", flush=True)
    print(counts)
    return bool(counts["WRONG"])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import random_programs  # by its name, so that ranks find it

    sys.exit(random_programs.main())
