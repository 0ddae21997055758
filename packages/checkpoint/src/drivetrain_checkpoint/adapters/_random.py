"""States of random number generators, which differ from rank to rank."""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

import torch


def random_states() -> dict[str, Any]:
    """Returns the states of this process's generators, as a checkpoint holds them.

    They are those of Python, of torch on the CPU and on every CUDA device, and of
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
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
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
    if "cuda" in states and torch.cuda.is_available():
        for device, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)
    if "numpy" in states:
        numpy = importlib.import_module("numpy")
        numpy.random.set_state(states["numpy"])
