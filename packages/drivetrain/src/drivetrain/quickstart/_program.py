"""The program of a script, taken over: alike in every process, and left undisturbed."""

from __future__ import annotations

import hashlib
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from drivetrain_core.accelerators import isolated_rng
from drivetrain_core.scripts import build_script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from drivetrain_core import Accelerated, Choice

_SEED = 0


def seed_everything() -> None:
    """Makes what draws from the global generators draw alike in every process."""
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    np.random.seed(_SEED)  # noqa: NPY002 - what data sets in the field draw from


def build(
    script: str, arguments: Sequence[str], choices: Sequence[Choice]
) -> Accelerated:
    """Returns the program of a script under a plan, before its first step.

    Args:
        script: Its path.
        arguments: Its command line.
        choices: The plan; none for the program as written.
    """
    seed_everything()
    accelerated = build_script(script, arguments, list(choices))
    seed_everything()
    return accelerated


def digest(module: torch.nn.Module) -> str:
    """Returns a hash of a model's values in bfloat16, to which some plans round them."""
    found = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            rounded = tensor.bfloat16() if tensor.is_floating_point() else tensor
            values = rounded.detach().cpu().reshape(-1).view(torch.uint8)
            found.update(name.encode())
            found.update(values.numpy().tobytes())
    return found.hexdigest()


@contextmanager
def undone(accelerated: Accelerated) -> Iterator[None]:
    """Puts buffers, gradients and random states back that passes within have changed."""
    module = accelerated.module
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with isolated_rng():
        yield
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])
    for parameter in module.parameters():
        parameter.grad = None
