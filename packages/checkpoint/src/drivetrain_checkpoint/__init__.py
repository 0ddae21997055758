"""Checkpoints in two stages: shared memory that outlives the trainer, then storage.

Importing this package does not import torch; the first use of a checkpointer does. The
daemon never does.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
