"""PyTorch training that outlives its machines.

Importing this package does not import torch; the first use of what needs it does.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
