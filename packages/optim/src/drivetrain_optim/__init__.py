"""Optimizers for PyTorch, exact and ready for sharded parameters.

Importing this package does not import torch; the first use of an optimizer does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export
from drivetrain_core.moved import forward_modules as _forward_modules
from drivetrain_optim._errors import (
    GraphCaptureError,
    HyperparameterError,
    NonFiniteGradientError,
    StateDictError,
    StepOrderError,
    UnsupportedTensorError,
)
from drivetrain_optim.algorithms._agd_options import DELTA_PRESETS

if TYPE_CHECKING:
    from drivetrain_optim._explain import Explanation, PathUse, explain
    from drivetrain_optim._version import __version__
    from drivetrain_optim.algorithms._agd import AGD
    from drivetrain_optim.algorithms._lamb import LAMB
    from drivetrain_optim.wsam._wsam import WSAM

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
    "__version__": "_version",
    "AGD": "algorithms._agd",
    "LAMB": "algorithms._lamb",
    "WSAM": "wsam._wsam",
    "Explanation": "_explain",
    "PathUse": "_explain",
    "explain": "_explain",
}


def __getattr__(name: str) -> Any:
    """Imports what needs torch, or takes time, when it is first used."""
    return _load_export(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)


# Optimizers that were pickled whole name the modules of their classes.
_forward_modules(
    {
        "drivetrain_optim._agd": "drivetrain_optim.algorithms._agd",
        "drivetrain_optim._lamb": "drivetrain_optim.algorithms._lamb",
        "drivetrain_optim._wsam": "drivetrain_optim.wsam._wsam",
        "drivetrain_optim._wsam_groups": "drivetrain_optim.wsam._groups",
    }
)
