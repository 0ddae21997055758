"""The reference spaces: programs, and every plan that a search of each may ask for."""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from drivetrain_core._accelerate import _peek
from drivetrain_core._choice import Choice
from drivetrain_core._compose import arrange, problems
from drivetrain_core._optimizer.source import OptimizerSource
from drivetrain_core._probe import make_context
from drivetrain_core._program import Program
from drivetrain_core._registry import find
from drivetrain_core.examples import byte_lm

PRECISION = ("precision", ("bf16_autocast", "bf16_params"))
OPTIMIZER = ("optimizer_impl", ("fused", "foreach"))
THREADS = ("cpu_threads", (1,))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferenceSpace:
    """A program, and the values of each optimization besides leaving it out."""

    name: str
    about: str
    program: Program
    values: tuple[tuple[str, tuple[object, ...]], ...]

    def candidates(self):
        """Returns the candidates of each optimization, in the order given."""
        return {
            name: tuple(Choice(name, find(name).normalize(v)) for v in values)
            for name, values in self.values
        }

    def context(self):
        data, batches = _peek(self.program.data, searches=True)
        model = self.program.build_model()
        source = OptimizerSource.of(self.program.optimizer, model)
        cpu = torch.device("cpu")
        return make_context(cpu, model, batches[0], source, data, owns_step=True)

    def plans(self, context):
        """Returns every plan that can be used, the baseline first."""
        answers = [(None, *choices) for choices in self.candidates().values()]
        plans = [
            arrange([choice for choice in combination if choice is not None])
            for combination in itertools.product(*answers)
        ]
        return [plan for plan in plans if not problems(plan, context)]


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, foreach=False)


def language_model():
    train, _ = byte_lm.read_standard_library(500_000)
    config = byte_lm.ByteLMConfig(
        num_layers=4, dim=128, num_heads=4, num_kv_heads=2, ffn_dim=352
    )
    return ReferenceSpace(
        name="language-model",
        about="micro-batch x activation checkpointing x compile x threads x workers",
        program=Program(
            model=partial(byte_lm.ByteLM, config),
            optimizer=adamw,
            data=byte_lm.loader(train, batch_size=16, length=64),
            loss=byte_lm.loss,
        ),
        values=(
            PRECISION,
            ("compile", ("block",)),
            ("activation_checkpoint", ("selective", "full")),
            ("micro_batch", (2, 4)),
            OPTIMIZER,
            THREADS,
            ("data_loading", (1,)),
        ),
    )


class Augmented(Dataset):
    """Images that cost about as much to prepare as to train on."""

    def __init__(self, size=32, length=4096):
        self.size, self.length = size, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        draw = np.random.default_rng(index)
        image = draw.standard_normal((3, 2 * self.size, 2 * self.size))
        frequencies = np.fft.rfft2(image)
        frequencies[:, self.size :] = 0.0
        smooth = np.fft.irfft2(frequencies, axes=(1, 2)).astype(np.float32)
        half = smooth[:, ::2, ::2]
        return torch.from_numpy(np.ascontiguousarray(half)), index % 10


class Residual(nn.Module):
    """A convolution block without statistics of the batch."""

    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 5, padding=2, groups=channels)
        self.norm = nn.GroupNorm(1, channels)
        self.wide = nn.Conv2d(channels, 4 * channels, 1)
        self.narrow = nn.Conv2d(4 * channels, channels, 1)

    def forward(self, x):
        mixed = self.wide(self.norm(self.depthwise(x)))
        return x + self.narrow(nn.functional.gelu(mixed))


class ConvNet(nn.Module):
    """A stem, blocks of one class, and a linear head."""

    def __init__(self, channels=48, blocks=4, stride=4):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, stride, stride=stride)
        self.blocks = nn.ModuleList(Residual(channels) for _ in range(blocks))
        self.head = nn.Linear(channels, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=(2, 3)))


def cross_entropy(output, batch):
    return nn.functional.cross_entropy(output, batch[1])


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=False)


def augmented_images():
    return ReferenceSpace(
        name="augmented-images",
        about="threads x workers x precision x compile x memory format",
        program=Program(
            model=partial(ConvNet, channels=32, blocks=4),
            optimizer=sgd,
            data=DataLoader(Augmented(), batch_size=32, shuffle=True),
            loss=cross_entropy,
        ),
        values=(
            PRECISION,
            ("compile", ("block",)),
            ("channels_last", (None,)),
            THREADS,
            ("micro_batch", (2,)),
            ("data_loading", (1,)),
        ),
    )


def convolutions():
    images = [(torch.randn(16, 3, 32, 32), torch.randint(10, (16,))) for _ in range(16)]
    return ReferenceSpace(
        name="convolutions",
        about="precision x implementation x micro-batch",
        program=Program(
            model=partial(ConvNet, channels=64, blocks=4, stride=2),
            optimizer=adamw,
            data=images,
            loss=cross_entropy,
        ),
        values=(
            PRECISION,
            ("compile", ("block", "whole")),
            ("channels_last", (None,)),
            ("micro_batch", (2,)),
            ("optimizer_impl", ("fused",)),
            THREADS,
        ),
    )


SPACES = {
    "language-model": language_model,
    "augmented-images": augmented_images,
    "convolutions": convolutions,
}
