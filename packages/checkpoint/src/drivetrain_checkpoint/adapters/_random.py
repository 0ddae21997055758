"""States of random number generators, which differ from rank to rank."""

from __future__ import annotations

import importlib
import logging
import random
import sys
from typing import Any

import torch

from drivetrain_core.accelerators import accelerator_of

logger = logging.getLogger(__name__)

_OF_HOSTS = {"numpy", "python", "torch"}


def random_states() -> dict[str, Any]:
    """Returns the states of this process's generators, as a checkpoint holds them.

    They are those of Python, of torch on the CPU and on every accelerator, and of
    NumPy where something has imported it.

    Example:
        >>> before = random_states()
        >>> one = torch.rand(1), random.random()
        >>> set_random_states(before)
        >>> one == (torch.rand(1), random.random())
        True
    """
    states: dict[str, Any] = {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
    }
    here = torch.accelerator.current_accelerator(check_available=True)
    if here is not None:
        states[here.type] = accelerator_of(here).rng_states()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, key, *rest = numpy.random.get_state()
        states["numpy"] = (name, key.tolist(), *rest)
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Puts generators where they were.

    Args:
        states: What `random_states` returned.
    """
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    here = torch.accelerator.current_accelerator(check_available=True)
    for device_type in states.keys() - _OF_HOSTS:
        if here is not None and here.type == device_type:
            accelerator_of(here).set_rng_states(states[device_type])
        else:
            logger.warning(
                "the states of random number generators of %s are left out: this process "
                "has %s, whose generators stay as they are",
                device_type,
                f"no {device_type}" if here is None else here.type,
            )
    if "numpy" in states:
        numpy = importlib.import_module("numpy")
        numpy.random.set_state(states["numpy"])
