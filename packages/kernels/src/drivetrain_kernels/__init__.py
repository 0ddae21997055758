"""Fused training operators for PyTorch, and a compile selector.

Importing this package does not import torch; the first use of an op does.
"""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub

# What handlers name is there from the start, whatever is used of the rest.
from drivetrain_kernels._errors import (
    DeviceError as DeviceError,
)
from drivetrain_kernels._errors import (
    DtypeError as DtypeError,
)
from drivetrain_kernels._errors import (
    ImplementationError as ImplementationError,
)
from drivetrain_kernels._errors import (
    ImplementationNameError as ImplementationNameError,
)
from drivetrain_kernels._errors import (
    IndexRangeError as IndexRangeError,
)
from drivetrain_kernels._errors import (
    OptionError as OptionError,
)
from drivetrain_kernels._errors import (
    ReplacementError as ReplacementError,
)
from drivetrain_kernels._errors import (
    SelectionError as SelectionError,
)
from drivetrain_kernels._errors import (
    ShapeError as ShapeError,
)

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
