"""Twelve programs of different kinds, each with a space of at most 24 plans."""

from __future__ import annotations

import dataclasses
import math
import time
from functools import partial

import torch
from reference_spaces import Augmented, ConvNet, cross_entropy
from torch import nn
from torch.utils.data import DataLoader
from zoo import ZOO, class_loss, integers, loaded, random, square_loss

from drivetrain_core import BaseOptimization, Option, Phase, Slot, register
from drivetrain_core._program import Program

LOW = ("precision", ("bf16_autocast", "bf16_params"))
AUTOCAST = ("precision", ("bf16_autocast",))
WHOLE = ("compile", ("whole",))
IMPLEMENTATION = ("optimizer_impl", ("fused", "foreach"))
FUSED = ("optimizer_impl", ("fused",))
MEMORY = ("host_allocator", (None,))
HALVES = ("micro_batch", (2,))
THREAD = ("cpu_threads", (1,))
LAST = ("channels_last", (None,))
WORKER = ("data_loading", (1,))
SLEEP_S = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A program, and the values of each optimization besides leaving it out.

    Args:
        make: Returns the program.
        values: The values by the optimization's name.
    """

    make: object
    values: tuple

    @property
    def plans(self):
        return math.prod(1 + len(values) for _, values in self.values)


def with_optimizer(name, optimizer):
    """A program of the zoo with another optimizer."""
    return lambda: dataclasses.replace(ZOO[name](), optimizer=optimizer)


def adagrad(parameters):
    return torch.optim.Adagrad(parameters, lr=0.01)


def nadam(parameters):
    return torch.optim.NAdam(parameters, lr=1e-3)


def rmsprop(parameters):
    return torch.optim.RMSprop(parameters, lr=1e-4)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01)


def tiny():
    """Steps of about a millisecond."""
    model = partial(nn.Sequential, nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    data = loaded(16, random(256, 32), integers(10, 256))
    batches = list(data)
    return Program(model=model, optimizer=adam, data=batches, loss=class_loss)


class Sleeper(nn.Module):
    """Sleeps in its forward, so that its steps are slow on any machine."""

    def __init__(self):
        super().__init__()
        self.layer, self.seconds = nn.Linear(4, 1), SLEEP_S

    def forward(self, x):
        time.sleep(self.seconds)
        return self.layer(x)


class ShorterSleep(BaseOptimization):
    """Makes the sleep longer, or shorter; neither end is the shortest."""

    name = "shorter_sleep"
    slot = Slot.KERNELS
    phase = Phase.MODEL_SWAP
    options = {"level": Option(0, choices=(0, 1, 2, 3))}
    shorthand = "level"

    def configs(self, context):
        return [{"level": level} for level in (0, 1, 2, 3)]

    def apply(self, state, config):
        state.module.seconds = SLEEP_S * (1.3, 0.8, 0.5, 0.7)[config["level"]]


def sleeper():
    data = [(random(8, 4, seed=i), random(8, 1, seed=9 + i)) for i in range(8)]
    return Program(model=Sleeper, optimizer=sgd, data=data, loss=square_loss)


def data_bound():
    return Program(
        model=partial(ConvNet, channels=32, blocks=4),
        optimizer=sgd,
        data=DataLoader(Augmented(), batch_size=32, shuffle=True),
        loss=cross_entropy,
    )


def prepare():
    """Makes known what a program's space needs and no package brings."""
    register(ShorterSleep())


TABLE = {
    "language-model": Entry(
        make=ZOO["language-model"], values=(LOW, WHOLE, FUSED, MEMORY)
    ),
    "resnet": Entry(make=ZOO["resnet"], values=(AUTOCAST, WHOLE, LAST, FUSED)),
    "u-net": Entry(make=ZOO["u-net"], values=(LOW, WHOLE, LAST, MEMORY)),
    "lstm": Entry(make=ZOO["lstm"], values=(LOW, FUSED, HALVES, THREAD)),
    "recommender": Entry(
        make=with_optimizer("recommender", adagrad),
        values=(AUTOCAST, WHOLE, ("optimizer_impl", ("foreach",)), MEMORY),
    ),
    "mlp": Entry(
        make=with_optimizer("mlp", nadam),
        values=(LOW, WHOLE, ("optimizer_impl", ("foreach",)), THREAD),
    ),
    "vit": Entry(make=ZOO["vit"], values=(LOW, WHOLE, IMPLEMENTATION)),
    "scatter": Entry(
        make=with_optimizer("scatter", rmsprop),
        values=(LOW, ("optimizer_impl", ("foreach",)), HALVES, MEMORY),
    ),
    "diffusion-transformer": Entry(
        make=ZOO["diffusion-transformer"], values=(LOW, WHOLE, FUSED)
    ),
    "tiny": Entry(make=tiny, values=(WHOLE, IMPLEMENTATION, THREAD, HALVES)),
    "sleeper": Entry(make=sleeper, values=(("shorter_sleep", (0, 1, 2, 3)), HALVES)),
    "data-bound": Entry(make=data_bound, values=(AUTOCAST, LAST, THREAD, WORKER)),
}
