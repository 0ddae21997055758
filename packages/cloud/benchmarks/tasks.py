"""What benchmarks of jobs on nodes that come and go train: real data, in fp64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import digits
import torch
from torch import nn

from drivetrain_core.examples import byte_lm

_LENGTH, _BYTES, _HELD_OUT = 64, 1_000_000, 256


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model, what it learns from, and what it is tried on.

    Args:
        model: With weights that are the same each time.
        loss: Of outputs and a batch.
        data: Samples, each an input and a target.
        held_out: Likewise.
    """

    model: nn.Module
    loss: Callable
    data: Sequence
    held_out: Sequence

    def score(self):
        """Returns the loss and the accuracy on held-out samples."""
        batch = collate(self.held_out, range(min(_HELD_OUT, len(self.held_out))))
        with torch.no_grad():
            output = self.model(batch[0])
            hits = (output.argmax(-1) == batch[1]).double().mean()
            return {"loss": self.loss(output, batch).item(), "accuracy": hits.item()}


class Residual(nn.Module):
    """Two convolutions beside a shortcut; its norms know one sample only."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(4, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(4, outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x):
        return (self.body(x) + self.shortcut(x)).relu()


def _resnet(width=8):
    torch.manual_seed(0)
    model = nn.Sequential(
        Residual(1, width, 1),
        Residual(width, 2 * width, 2),
        Residual(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )
    train, test = digits.load_digits()
    train, test = ([(x.double(), y) for x, y in one] for one in (train, test))
    return Task(model=model.double(), loss=digits.loss, data=train, held_out=test)


def _byte_lm():
    torch.manual_seed(0)
    size = byte_lm.ByteLMConfig(
        num_layers=1, dim=32, num_heads=2, num_kv_heads=2, ffn_dim=64
    )
    text, held_out = byte_lm.read_standard_library(_BYTES)
    return Task(
        model=byte_lm.ByteLM(size).double(),
        loss=byte_lm.loss,
        data=byte_lm.ByteText(text, _LENGTH),
        held_out=byte_lm.ByteText(held_out, _LENGTH),
    )


TASKS = {"byte_lm": _byte_lm, "resnet": _resnet}
"""Makers of tasks: a language model on the standard library, a ResNet on digits."""


def collate(data, indices):
    """Returns samples as one batch."""
    inputs, targets = zip(*(data[index] for index in indices), strict=True)
    return torch.stack(inputs), torch.stack(list(map(torch.as_tensor, targets)))
