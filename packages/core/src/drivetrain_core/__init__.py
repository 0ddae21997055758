"""Finds and applies the fastest way to run a PyTorch training program.

    accelerated = accelerate(model, optimizer, data, loss)
    for batch in accelerated.loader:
        loss = accelerated.train_step(batch)

Every name is imported when it is first used: importing this package imports neither
torch nor anything else that is slow.
"""

from __future__ import annotations

import json as _json
from pathlib import Path as _Path

from drivetrain_core.lazy import attach_stub as _attach_stub
from drivetrain_core.lazy import read_beside as _read_beside
from drivetrain_core.moved import forward_modules as _forward_modules

__getattr__, __dir__, __all__ = _attach_stub(
    __name__,
    __file__,
    moved={
        "ParallelMesh": "drivetrain_parallel",
        "Report": "drivetrain_search",
        "TrialRecord": "drivetrain_search",
        "create_mesh": "drivetrain_parallel",
    },
)

_MOVED = str(_Path(__file__).with_name("moved.json"))
_forward_modules(_json.loads(_read_beside(__name__, _MOVED)))
