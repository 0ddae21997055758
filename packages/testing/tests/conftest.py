"""A fixture that puts global settings back."""

from __future__ import annotations

from drivetrain_testing.pytest import restored  # noqa: F401
