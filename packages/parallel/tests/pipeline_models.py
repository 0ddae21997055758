"""Models with the traps that a pipeline must not fall into, and how they are trained."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as f

from drivetrain_parallel.pipeline import (
    PipelineStep,
    build_stages,
    plan_pipeline,
    stages_of_rank,
)

WIDTH, VOCAB, LENGTH = 32, 40, 6


class Block(nn.Module):
    """A transformer's block without a mask; returns a tensor."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden, mask=None):
        q, k, v = self.qkv(self.norm(hidden)).chunk(3, -1)
        hidden = hidden + self.out(f.scaled_dot_product_attention(q, k, v, mask))
        return hidden + f.gelu(self.up(hidden))


class TupleBlock(Block):
    """Returns a tuple, whose second item nobody reads."""

    def forward(self, hidden, mask=None):
        hidden = super().forward(hidden, mask)
        return hidden, hidden.mean()


class Decoder(nn.Module):
    """Token and position embeddings, an embedding norm, blocks, and a tied head."""

    def __init__(self, blocks=4, block=Block, tied=True):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.embedding_norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(block() for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        hidden = self.tokens(ids)
        places = torch.arange(ids.shape[1], device=ids.device)
        hidden = self.embedding_norm(hidden + self.positions(places))
        mask = places[:, None] >= places[None]
        for layer in self.layers:
            hidden = layer(hidden, mask=mask)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        return self.head(self.norm(hidden))


class DirectHead(nn.Module):
    """The head reads the embedding's weight without calling it."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(4))

    def forward(self, ids):
        hidden = self.tokens(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return f.linear(hidden, self.tokens.weight)


class ConditionedBlock(nn.Module):
    """Modulated by a conditioning that all blocks read."""

    def __init__(self):
        super().__init__()
        self.modulate = nn.Linear(WIDTH, 2 * WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden, condition):
        shift, scale = self.modulate(condition).unsqueeze(1).chunk(2, -1)
        return hidden + f.gelu(self.up(hidden * (1 + scale) + shift))


class Conditioned(nn.Module):
    """A diffusion transformer in small: loose positions, times that all blocks read."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Linear(4, WIDTH)
        self.positions = nn.Parameter(torch.randn(1, LENGTH, WIDTH))
        self.times = nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU())
        self.layers = nn.ModuleList(ConditionedBlock() for _ in range(4))
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x, t):
        hidden = self.patches(x) + self.positions
        condition = self.times(t)
        for layer in self.layers:
            hidden = layer(hidden, condition)
        return self.last(hidden)


class EncoderDecoder(nn.Module):
    """What the encoder returns goes into each block of the decoder."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.encoder = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())
        self.layers = nn.ModuleList(ConditionedBlock() for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        memory = self.encoder(self.tokens(ids)).mean(1)
        hidden = self.tokens(ids.flip(1))
        for layer in self.layers:
            hidden = layer(hidden, condition=memory)
        return self.head(hidden)


class Skipping(nn.Module):
    """The third block also reads what the first returned."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        hidden = first = self.tokens(ids)
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden)
            first = hidden if index == 0 else first
        return self.head(hidden + first)


def token_loss(model, batch):
    """Next-token cross entropy."""
    ids = batch["ids"]
    return f.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def noise_loss(model, batch):
    """Mean squared error: the loss needs the batch."""
    return f.mse_loss(model(batch["x"], batch["t"]), batch["noise"])


def token_batch(size=2, seed=0, length=LENGTH):
    generator = torch.Generator().manual_seed(seed)
    return {"ids": torch.randint(0, VOCAB, (size, length), generator=generator)}


def noise_batch(size=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, size, LENGTH, 4, generator=generator)
    return {"x": x[0], "noise": x[1], "t": torch.rand(size, 1, generator=generator)}


def build(kind, **options):
    """Returns a model with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(**options)


def train_whole(model, loss_of, steps, weights, max_steps=3):
    """Returns losses and parameters of training in one process."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    losses = []
    for parts in steps[:max_steps]:
        total = 0.0
        for part, weight in zip(parts, weights, strict=True):
            loss = loss_of(model, part) * weight
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, {n: p.detach() for n, p in model.named_parameters()}


def train_stages(model, plan, loss_of, steps, weights, schedule, wrap=None):
    """Returns losses and this rank's parameters of training in a pipeline."""
    group = dist.group.WORLD
    mine = stages_of_rank(
        schedule,
        rank=group.rank(),
        num_ranks=group.size(),
        stages_per_rank=plan.num_stages // group.size(),
    )
    stages = build_stages(model, plan, mine, loss_of)
    if wrap is not None:
        wrap(stages)
    step = PipelineStep(stages, plan, schedule=schedule, group=group)
    parameters = {
        plan.canonical_name(stage.stage_index, name): parameter
        for stage in stages
        for name, parameter in stage.model.named_parameters()
    }
    unique = list({id(p): p for s in stages for p in s.parameters()}.values())
    optimizer = torch.optim.SGD(unique, lr=0.3, momentum=0.9)
    losses = []
    for parts in steps:
        losses.append(float(step.run(parts, weights)))
        optimizer.step()
        optimizer.zero_grad()
    return losses, {name: _whole(p) for name, p in parameters.items()}, step


def _whole(parameter):
    full = getattr(parameter, "full_tensor", None)
    return (parameter if full is None else full()).detach().clone()


def make(kind, loss_of, batch, num_stages, **options):
    """Returns a model and its plan, from counted costs, so that all ranks agree."""
    from drivetrain_parallel.pipeline import PipelineCosts

    model = build(kind, **options)
    blocks = len(model.layers)
    costs = PipelineCosts(prologue=0.0, blocks=(1.0,) * blocks, epilogue=0.0)
    return model, plan_pipeline(model, batch, loss_of, num_stages, costs=costs)
