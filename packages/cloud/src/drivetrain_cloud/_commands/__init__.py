"""The commands of `drivetrain cloud`, one a file."""

from __future__ import annotations

__all__: list[str] = []
