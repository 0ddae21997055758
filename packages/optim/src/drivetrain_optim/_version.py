"""The version of this package, as it was installed."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("drivetrain-optim")
