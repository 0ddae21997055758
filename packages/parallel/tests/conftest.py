"""Shared programs, and a fixture that puts global settings back."""

from __future__ import annotations

import sys
from pathlib import Path

from drivetrain_testing.pytest import (  # noqa: F401
    built,
    context,
    program,
    restored,
)

# Some tests have helpers that lie beside them.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "examples"))
