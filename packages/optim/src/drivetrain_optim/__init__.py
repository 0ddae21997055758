"""Optimizers for PyTorch, exact and ready for sharded parameters.

Importing this package does not import torch; the first use of an optimizer does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from drivetrain_optim._agd_options import DELTA_PRESETS
from drivetrain_optim._errors import (
    GraphCaptureError,
    HyperparameterError,
    NonFiniteGradientError,
    StateDictError,
    StepOrderError,
    UnsupportedTensorError,
)

if TYPE_CHECKING:
    from drivetrain_optim._agd import AGD
    from drivetrain_optim._explain import Explanation, PathUse, explain
    from drivetrain_optim._lamb import LAMB
    from drivetrain_optim._wsam import WSAM

__all__ = [
    "AGD",
    "DELTA_PRESETS",
    "LAMB",
    "WSAM",
    "Explanation",
    "GraphCaptureError",
    "HyperparameterError",
    "NonFiniteGradientError",
    "PathUse",
    "StateDictError",
    "StepOrderError",
    "UnsupportedTensorError",
    "__version__",
    "explain",
]

_HOMES = {
    "AGD": "_agd",
    "LAMB": "_lamb",
    "WSAM": "_wsam",
    "Explanation": "_explain",
    "PathUse": "_explain",
    "explain": "_explain",
}


def __getattr__(name: str) -> object:
    """Imports what needs torch, or takes time, when it is first used."""
    value: object
    if name in _HOMES:
        value = getattr(import_module(f"drivetrain_optim.{_HOMES[name]}"), name)
    elif name == "__version__":
        from importlib.metadata import version

        value = version("drivetrain-optim")
    else:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)
