"""Fused training operators for PyTorch, and a compile selector.

Importing this package does not import torch; the first use of an op does.
"""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub

# What handlers name is there from the start, whatever is used of the rest.
from drivetrain_kernels._errors import (  # noqa: F401
    DeviceError,
    DtypeError,
    ImplementationError,
    ImplementationNameError,
    IndexRangeError,
    OptionError,
    ReplacementError,
    SelectionError,
    ShapeError,
)

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
