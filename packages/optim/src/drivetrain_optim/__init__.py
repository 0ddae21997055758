"""Optimizers for PyTorch, exact and ready for sharded parameters.

Importing this package does not import torch; the first use of an optimizer does.
"""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub
from drivetrain_core.moved import forward_modules as _forward_modules

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)

# Optimizers that were pickled whole name the modules of their classes.
_forward_modules(
    {
        "drivetrain_optim._agd": "drivetrain_optim.algorithms._agd",
        "drivetrain_optim._lamb": "drivetrain_optim.algorithms._lamb",
        "drivetrain_optim._wsam": "drivetrain_optim.wsam._wsam",
        "drivetrain_optim._wsam_groups": "drivetrain_optim.wsam._groups",
    }
)
