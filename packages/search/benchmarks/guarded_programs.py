"""Small programs that the numerical guard is tried on, and its judgement of a plan.

Each has something that a plan may break: tied weights, BatchNorm, dropout, a recurrent
layer, clipping, a schedule, a shuffled loader.
"""

from __future__ import annotations

import dataclasses
from itertools import islice

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from drivetrain_core._build import build
from drivetrain_core._choice import Reject
from drivetrain_core._compose import (
    complete,
    numerics_of,
    read_strategy,
    require_usable,
)
from drivetrain_core._data.cycle import cycle
from drivetrain_core._data.loader import undisturbed
from drivetrain_core._optimizer.source import OptimizerSource
from drivetrain_core._plan import Plan
from drivetrain_core._probe import make_context
from drivetrain_core._program import Program
from drivetrain_core.numerics.guard import compare
from drivetrain_core.numerics.observation import FIRST_STEPS
from drivetrain_search.draw import draw, is_repeatable
from drivetrain_search.process.pace import TRAJECTORY_STEPS
from drivetrain_search.process.payload import Payload
from drivetrain_search.process.rank import _rank_part
from drivetrain_search.process.trajectory import observe_trajectory
from drivetrain_search.verify import structure_of

BATCH = 16


class Residual(nn.Module):
    """Blocks with dropout around a counter of their calls."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(12, 24)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 24), nn.GELU())
            for _ in range(3)
        )
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = x + self.drop(layer(x))
        return self.head(x)


class Convolutions(nn.Module):
    """Convolutions with BatchNorm."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                16, 2, 32, dropout=0.1, batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    """An LSTM with dropout between its layers."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 12, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Counting(nn.Module):
    """Blocks that count their calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Counted(12, 12) for _ in range(3))
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


class Counted(nn.Linear):
    """A layer with a counter."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


def cross_entropy(output, batch):
    return nn.functional.cross_entropy(output.flatten(0, -2), batch[1].flatten())


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def adamw_slow(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def warmup(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 20)


def later(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=100)


def loader(x, y, shuffle=False):
    dataset = TensorDataset(x, y)
    return DataLoader(dataset, batch_size=BATCH, shuffle=shuffle, drop_last=True)


def classes(*shape, shuffle=False):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(10 * BATCH, *shape, generator=generator)
    return loader(x, x.flatten(1)[:, :4].argmax(1), shuffle)


def tokens():
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 32, (10 * BATCH, 9), generator=generator)
    return loader(x[:, :-1], x[:, 1:].clone(), shuffle=True)


def programs():
    """The programs by name."""
    return {
        "residual": Program(
            model=Residual, optimizer=adamw, data=classes(12), loss=cross_entropy
        ),
        "convolutions": Program(
            model=Convolutions,
            optimizer=sgd,
            data=classes(1, 6, 6, shuffle=True),
            loss=cross_entropy,
            scheduler=later,
        ),
        "tied": Program(
            model=Tied,
            optimizer=adamw,
            data=tokens(),
            loss=cross_entropy,
            scheduler=warmup,
            max_grad_norm=1.0,
        ),
        "recurrent": Program(
            model=Recurrent,
            optimizer=adamw_slow,
            data=classes(5, 6),
            loss=cross_entropy,
            max_grad_norm=100.0,
        ),
    }


def counting():
    """A program for plans that run a forward twice."""
    return Program(
        model=Counting, optimizer=adamw, data=classes(12), loss=cross_entropy
    )


def payload_of(program, optimizations=()):
    """What trials of a program are given, on the CPU."""
    model = program.build_model()
    source = OptimizerSource.of(program.optimizer, model)
    with undisturbed(program.data):
        torch.manual_seed(5)
        batches = list(islice(cycle(program.data), 10))
    cpu = torch.device("cpu")
    context = make_context(cpu, model, batches[0], source, program.data, owns_step=True)
    return Payload(
        program=program,
        context=context,
        guard_batches=tuple(batches),
        device="cpu",
        optimizations=optimizations,
    )


def on_rank(payload, size=None):
    """The payload of a rank of this process group, or of the first of some ranks."""
    alone = size is not None
    world = dataclasses.replace(
        payload.context.world,
        size=size if alone else torch.distributed.get_world_size(),
        rank=0 if alone else torch.distributed.get_rank(),
    )
    world = dataclasses.replace(world, local_size=world.size)
    context = dataclasses.replace(payload.context, world=world)
    return dataclasses.replace(payload, context=context)


def choices_of(strategy, context):
    """The plan of a strategy, completed and checked."""
    choices = complete(read_strategy(strategy).choices, context)
    require_usable(choices, context)
    return choices


def look(payload, choices, *, baseline=False, trajectory=False):
    """What a trial observes, in this process; on each rank of a group, if there is one."""
    program, context = payload.program, payload.context
    torch.manual_seed(program.seed)
    model = program.build_model()
    source = OptimizerSource.of(program.optimizer, model)
    cpu = torch.device("cpu")
    accelerated = build(program, model, source, Plan(choices=choices), context, cpu)
    try:
        repeatable = baseline and is_repeatable(
            accelerated.loader, program.data, seed=program.seed
        )
        return observe_trajectory(
            accelerated,
            [_rank_part(batch, accelerated, cpu) for batch in payload.guard_batches],
            seed=program.seed,
            noise=baseline,
            num_steps=TRAJECTORY_STEPS if baseline or trajectory else FIRST_STEPS,
            drawn=draw(iter(cycle(accelerated.loader)), seed=program.seed),
            is_repeatable=repeatable,
        )
    finally:
        accelerated.close()
        torch._dynamo.reset()


def judged(payload, choices, reference):
    """The answers to a trial, and to what `verify` looks at, in this process."""
    answer = compare(reference, look(payload, choices), numerics_of(choices))
    if isinstance(answer, Reject):
        return answer
    structure = structure_of(choices, payload.context.world.size)
    if structure not in ((), choices):
        answer = compare(reference, look(payload, structure), numerics_of(structure))
        if isinstance(answer, Reject):
            return answer
    seen = look(payload, choices, trajectory=True)
    return compare(reference, seen, numerics_of(choices))
