"""What keeps a division by a gradient's norm finite."""

from __future__ import annotations

EPS = 1e-6  # as torch has it
