"""Programs that compare optimizers: `trajectories`, `digits`, `byte_lm`."""

from __future__ import annotations

__all__: list[str] = []
