"""The program of the main job: a byte-level language model on real text."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core.examples import byte_lm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_core import Accelerated

_ALLOW = ("compile", "cpu_threads", "micro_batch", "optimizer_impl", "precision")

_MOST_BATCHES = 20


def program(argv: Sequence[str]) -> dict[str, Any]:
    """Returns what the script gives to `accelerate`, as a script of anybody's would.

    Args:
        argv: The command line.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--max-bytes", type=int)
    parser.add_argument("--config", type=json.loads, default={})
    given = parser.parse_args(argv)
    text, _ = byte_lm.read_standard_library(given.max_bytes)
    return {
        "model": partial(byte_lm.ByteLM, byte_lm.ByteLMConfig(**given.config)),
        "optimizer": _adamw,
        "data": byte_lm.loader(text, batch_size=given.batch_size, length=given.length),
        "loss": byte_lm.loss,
        "max_grad_norm": 1.0,
        "allow": _ALLOW,
    }


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)


def script_path() -> str:
    """Returns the path of the script that trains it."""
    return str(Path(__file__).with_name("_byte_lm_script.py"))


def arguments_for(
    batch_size: int,
    length: int,
    max_bytes: int | None,
    config: byte_lm.ByteLMConfig | None,
) -> list[str]:
    """Returns the command line that asks for a size."""
    arguments = ["--batch-size", str(batch_size), "--length", str(length)]
    if max_bytes is not None:
        arguments += ["--max-bytes", str(max_bytes)]
    if config is not None:
        arguments += ["--config", json.dumps(asdict(config))]
    return arguments


def held_out_bits(
    accelerated: Accelerated, batch_size: int, length: int, max_bytes: int | None
) -> float:
    """Returns the bits that a byte of held-out text takes, by what was learnt so far."""
    _, text = byte_lm.read_standard_library(max_bytes)
    data = byte_lm.loader(text, batch_size=batch_size, length=length, shuffle=False)
    losses = [
        float(accelerated.loss_of(tuple(one.to(accelerated.device) for one in batch)))
        for batch in islice(data, _MOST_BATCHES)
    ]
    return byte_lm.bits_per_byte(sum(losses) / len(losses))
