"""Trains the program of a script in a process of its own, some steps at a time."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from drivetrain.quickstart._batches import draw_order, open_batches
from drivetrain.quickstart._byte_lm import held_out_bits
from drivetrain.quickstart._carry import refusal
from drivetrain.quickstart._channel import Channel
from drivetrain.quickstart._program import build, digest, seed_everything, undone
from drivetrain_core import Choice, DrivetrainError, undisturbed
from drivetrain_search.process.meters import (
    count_flops,
    peak_flops_per_s,
    peak_memory_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drivetrain_core import Accelerated

# A format that is so much slower than fp32 is no way to the peak, and takes long.
_SMALL, _WORTH_WHILE = 256, 0.5


class _Trainer:
    """What a process can be asked to do; each public method is one question."""

    def __init__(self) -> None:
        self._accelerated: Accelerated | None = None
        self._batches: Iterator[Any] = iter(())

    def _program(self) -> Accelerated:
        assert self._accelerated is not None
        return self._accelerated

    def build(
        self, script: str, arguments: list[str], choices: list[list[Any]]
    ) -> dict[str, Any]:
        """Runs the script up to its `accelerate`; returns what is known then."""
        plan = [Choice(name, config) for name, config in choices]
        self._accelerated = built = build(script, arguments, plan)
        context = built.context
        return {
            "refusal": None if plan else refusal(script, built),
            "digest": digest(built.module),
            "batch_size": context.batch.size,
            "num_tokens": context.batch.num_tokens,
            "num_parameters": context.model.num_parameters,
            "has_batch_norm": context.model.has_batch_norm,
            "num_threads": torch.get_num_threads(),
            "device": context.device.name,
        }

    def draw(self, num_steps: int, path: str) -> None:
        """Writes the order of the samples."""
        draw_order(self._program(), num_steps, Path(path))

    def open(self, path: str) -> None:
        """Begins to read in that order."""
        seed_everything()
        self._batches = open_batches(self._program(), Path(path)).whole()

    def train(self, num_steps: int) -> dict[str, list[float]]:
        """Makes steps; returns how long each took, and its loss."""
        program = self._program()
        times_s, losses = [], []
        for _ in range(num_steps):
            began_s = time.perf_counter()
            # To read the loss waits for the device.
            loss = float(program.train_step(next(self._batches)))
            times_s.append(time.perf_counter() - began_s)
            losses.append(loss)
        return {"times_s": times_s, "losses": losses}

    def flops(self) -> int | None:
        """Returns the floating-point operations of a step."""
        program = self._program()
        with undisturbed(program.loader):
            batch = next(iter(program.loader))
        with undone(program):
            return count_flops(program, batch)

    def peak(self) -> float:
        """Returns the best rate at which the device multiplies matrices now."""
        device, formats = self._program().device, [torch.float32]
        full, half = (
            peak_flops_per_s(device, dtype, size=_SMALL)
            for dtype in (torch.float32, torch.bfloat16)
        )
        if half > _WORTH_WHILE * full:
            formats.append(torch.bfloat16)
        return max(peak_flops_per_s(device, dtype) for dtype in formats)

    def memory(self) -> int:
        """Returns the peak of memory in bytes."""
        return peak_memory_bytes(self._program().device)

    def bits_per_byte(
        self, batch_size: int, length: int, max_bytes: int | None
    ) -> float:
        """Returns how well the byte model foresees held-out text."""
        return held_out_bits(self._program(), batch_size, length, max_bytes)


def main() -> None:
    """Answers until the other end is closed."""
    # What the script starts must not hold the connection when this process has ended.
    os.set_inheritable(int(sys.argv[1]), False)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    trainer = _Trainer()
    while (question := channel.receive()) is not None:
        answer: Callable[..., Any] = getattr(trainer, question.pop("do"))
        try:
            channel.send({"value": answer(**question)})
        except DrivetrainError as error:
            channel.send({"error": str(error)})
    if trainer._accelerated is not None:
        trainer._accelerated.close()


if __name__ == "__main__":
    main()
