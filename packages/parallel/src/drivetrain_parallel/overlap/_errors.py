"""What goes wrong with the arguments of overlapped communication."""

from __future__ import annotations

from drivetrain_core import DrivetrainError


class OverlapError(DrivetrainError, ValueError):
    """A tensor, module or schedule is not one whose communication can be overlapped."""
