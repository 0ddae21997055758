"""Programs that show Drivetrain on real input: `byte_lm`, `digits`, `llama`."""

from __future__ import annotations

__all__: list[str] = []
