"""Patterns that are hard on an allocator, each for one weakness, as they are written."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from drivetrain_memory.trace import Builder

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_memory.trace import Trace

_MIB = 2**20


def _checkerboard(size_mib: int) -> Trace:
    """Every second block of one size goes, and large ones come in their place."""
    builder = Builder(f"checkerboard-{size_mib}")
    size = size_mib * _MIB
    pairs = 4096 // (2 * size_mib)
    for _ in range(3):
        builder.step()
        blocks = [builder.allocate(size) for _ in range(2 * pairs)]
        for block in blocks[::2]:
            builder.free(block)
        freed = pairs * size
        large = [builder.allocate(128 * _MIB) for _ in range(freed // (128 * _MIB))]
        for block in (*large, *blocks[1::2]):
            builder.free(block)
    return builder.trace()


def _aging() -> Trace:
    """Among many short-lived blocks, some stay for long."""
    draw = random.Random(7)
    builder = Builder("aging")
    kept: list[tuple[int, int]] = []
    for step in range(60):
        builder.step()
        for block, until in list(kept):
            if until <= step:
                builder.free(block)
                kept.remove((block, until))
        stack = []
        for _ in range(100):
            size = int(_MIB * 2 ** draw.uniform(0, 6))
            block = builder.allocate(size)
            if draw.random() < 0.02:
                kept.append((block, step + draw.randint(5, 40)))
            else:
                stack.append(block)
        for block in reversed(stack):
            builder.free(block)
    for block, _ in kept:
        builder.free(block)
    return builder.trace()


def _island() -> Trace:
    """What a side stream used once is needed on the main stream."""
    builder = Builder("island")
    builder.step()
    side = [builder.allocate(256 * _MIB, stream=1) for _ in range(16)]
    for block in side:
        builder.free(block)
    for _ in range(3):
        builder.step()
        main = [builder.allocate(48 * _MIB) for _ in range(85)]
        for block in main:
            builder.free(block)
    return builder.trace()


def _creep() -> Trace:
    """Each step's tensors are a little larger than those of the step before."""
    builder = Builder("creep")
    for step in range(40):
        builder.step()
        kept = []
        for layer in range(24):
            size = (1000 + 7 * step) * (20 + layer % 3) * 1024
            kept.append(builder.allocate(size))
            builder.free(builder.allocate(3 * size))
        for block in reversed(kept):
            builder.free(block)
    return builder.trace()


def _doubling() -> Trace:
    """Eight blocks go, and four of twice their size come; and so on."""
    builder = Builder("doubling")
    for _ in range(5):
        builder.step()
        pinned = []
        blocks = []
        for _ in range(64):
            blocks.append(builder.allocate(16 * _MIB))
            pinned.append(builder.allocate(2 * _MIB))
        size = 32
        while size <= 256:
            for block in blocks:
                builder.free(block)
            count = 64 * 16 // size
            blocks = [builder.allocate(size * _MIB) for _ in range(count)]
            size *= 2
        for block in (*blocks, *pinned):
            builder.free(block)
    return builder.trace()


def _ping_pong() -> Trace:
    """Buffers of a side stream are used on the main one, as gathered weights are."""
    builder = Builder("ping-pong")
    weights = [builder.allocate(40 * _MIB) for _ in range(24)]
    for _ in range(6):
        builder.step()
        activations = []
        for _ in weights:
            gathered = builder.allocate(160 * _MIB, stream=1)
            activations.append(builder.allocate(60 * _MIB))
            builder.record_stream(gathered, 0)
            builder.free(gathered)
        for block in reversed(activations):
            gathered = builder.allocate(160 * _MIB, stream=1)
            gradient = builder.allocate(160 * _MIB)
            builder.record_stream(gathered, 0)
            builder.free(gathered)
            builder.free(block)
            builder.free(gradient)
    for block in weights:
        builder.free(block)
    return builder.trace()


def _checkpointing() -> Trace:
    """Every fifth step all weights are copied, as a snapshot for a checkpoint is."""
    builder = Builder("checkpointing")
    weights = [builder.allocate((24 + i % 5) * _MIB) for i in range(48)]
    for step in range(15):
        builder.step()
        if step % 5 == 4:
            copies = [
                builder.allocate((24 + i % 5) * _MIB, stream=1) for i in range(48)
            ]
            for block in copies:
                builder.free(block)
        activations = [builder.allocate((30 + i % 7) * _MIB) for i in range(48)]
        for block in reversed(activations):
            gradient = builder.allocate(26 * _MIB)
            builder.free(block)
            builder.free(gradient)
    for block in weights:
        builder.free(block)
    return builder.trace()


WRITTEN: dict[str, Callable[[], Trace]] = {
    "checkerboard-3": lambda: _checkerboard(3),
    "checkerboard-6": lambda: _checkerboard(6),
    "checkerboard-16": lambda: _checkerboard(16),
    "checkerboard-24": lambda: _checkerboard(24),
    "aging": _aging,
    "island": _island,
    "creep": _creep,
    "doubling": _doubling,
    "ping-pong": _ping_pong,
    "checkpointing": _checkpointing,
}
"""The functions that write what ships, by name."""
