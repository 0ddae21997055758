"""The key of the cache: equal only where a trial would give the same answer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from typing import TYPE_CHECKING, Any

import torch

import drivetrain_core
from drivetrain_core.accelerators import accelerator_of
from drivetrain_core.extending import OPTIMIZATIONS, SERVICES, installed, registered
from drivetrain_search.cache.code_hash import hash_code
from drivetrain_search.process.torch_settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from drivetrain_core import Context
    from drivetrain_core.extending import Program

CACHE_VERSION = 1
"""The version of the cache's file format; another one is another key."""


def cache_key(
    context: Context,
    program: Program,
    *,
    model: nn.Module | None = None,
    around: Mapping[str, Any] | None = None,
) -> str:
    """Returns the key of a program's trials on this machine.

    It covers the structure, the settings and the code of the model, the code of loss,
    forward and optimizer, the batch, the loop, the device, the ranks, the versions, and what
    is set in torch.
    The data itself is no part of it, nor are the values of parameters. With `around` it
    is pure: it reads the arguments and the code that they refer to, nothing else.

    Args:
        context: The facts of the program.
        program: The program.
        model: Its model where it is built, whose settings are exact; by default the
            program's own, or the code of the function that makes it.
        around: What `surroundings` returned; asked when None.

    Returns:
        64 hexadecimal digits, which name the file.
    """
    loop = dataclasses.asdict(context.loop)
    loop["optimizer_options"] = sorted(context.loop.optimizer_options)
    optimizer = program.optimizer
    if isinstance(optimizer, torch.optim.Optimizer):
        optimizer = type(optimizer)
    if around is None:
        around = surroundings(context.device.type)
    whole = {
        "cache": CACHE_VERSION,
        "model": context.model.fingerprint,
        "code": hash_code(
            program.model if model is None else model,
            program.loss,
            program.forward,
            optimizer,
            program.scheduler,
        ),
        "max_grad_norm": program.max_grad_norm,
        "batch": [context.batch.signature, context.batch.size],
        "loop": loop,
        "device": dataclasses.asdict(context.device),
        "world": [context.world.size, context.world.local_size],
        "around": dict(around),
    }
    canonical = json.dumps(whole, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def surroundings(device_type: str) -> dict[str, Any]:
    """Returns the versions, drivers and settings that a trial's speed depends on.

    Args:
        device_type: The torch device type, such as `cpu` or `cuda`.

    Example:
        >>> surroundings("cpu")["num_devices"]
        1
    """
    accelerator = accelerator_of(device_type)
    plugins = {
        f"{info.distribution} {info.version}"
        for group in (OPTIMIZATIONS, SERVICES)
        for info in installed(group)
    }
    return {
        "core": drivetrain_core.__version__,
        "torch": torch.__version__,
        "libraries": accelerator.version(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "num_devices": accelerator.device_count(),
        "driver": accelerator.driver(),
        "settings": {name: str(value) for name, value in read_settings().items()},
        "plugins": sorted(plugins),
        "registered": [hash_code(optimization) for optimization in registered()],
    }
