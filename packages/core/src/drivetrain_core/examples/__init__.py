"""Programs that show Drivetrain on real input: `byte_lm`, `digits`, `llama`."""

from __future__ import annotations

from drivetrain_core.moved import forward_modules as _forward_modules

__all__: list[str] = []

_forward_modules({"drivetrain_core.examples.quickstart": "drivetrain.quickstart"})
