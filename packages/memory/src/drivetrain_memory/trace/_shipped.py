"""The traces that ship: training steps, and patterns that are hard on an allocator."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_memory.trace._format import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

WORKLOADS = {
    "llm-full": "all weights of a language model of 1.3 billion, with AdamW",
    "llm-full-varlen": "the same on sequences of varying length",
    "llm-lora": "adapters of the model (LoRA)",
    "llm-lora-zero3": "adapters, recomputed blocks, weights gathered on a side stream",
    "llm-lora-zero3-varlen": "the same on sequences of varying length",
    "llm-zero3-varlen": "all weights, recomputed and gathered, varying length",
    "llm-7b-lora-zero3-varlen": "adapters of a model of 7 billion, varying length",
    "math-attention-varlen": "attention that keeps its scores, varying length",
    "moe": "a mixture of eight experts",
    "resnet-50": "a ResNet-50 on images",
}
"""What was recorded, by name."""

_FOLDER = Path(__file__).parents[1] / "traces"


def _load(name: str) -> Trace:
    return Trace.load(_FOLDER / f"{name}.dtm")


PATTERNS: dict[str, Callable[[], Trace]] = {
    name: functools.partial(_load, name)
    for name in (
        "checkerboard-3",
        "checkerboard-6",
        "checkerboard-16",
        "checkerboard-24",
        "aging",
        "island",
        "creep",
        "doubling",
        "ping-pong",
        "checkpointing",
    )
}
"""The patterns by name, each as a function that gives its trace."""


def workload(name: str) -> Trace:
    """Returns a trace that ships.

    Args:
        name: One of `WORKLOADS`.

    Raises:
        KeyError: There is none of that name.

    Example:
        >>> workload("resnet-50").num_steps
        5
    """
    if name not in WORKLOADS:
        raise KeyError(name)
    return _load(name)


def pattern(name: str) -> Trace:
    """Returns a pattern.

    Raises:
        KeyError: There is none of that name.

    Example:
        >>> pattern("island").num_steps
        4
    """
    return PATTERNS[name]()
