"""Finds and applies the fastest way to run a PyTorch training program.

    accelerated = accelerate(model, optimizer, data, loss)
    for batch in accelerated.loader:
        loss = accelerated.train_step(batch)

Every name is imported when it is first used: importing this package imports neither
torch nor anything else that is slow.
"""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
