"""Compiled libraries of packages, found where they were installed."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["find_library"]


def find_library(package: str, file: str) -> Path | None:
    """Returns a library that was built with a package; None if it was not.

    In an editable installation the library and the sources lie in two folders.

    Args:
        package: The name of the package, which is imported.
        file: The name of the library's file in it.

    Example:
        >>> find_library("drivetrain_core", "there_is_none.so") is None
        True
    """
    folders = map(Path, sys.modules[package].__path__)
    return next((f / file for f in folders if (f / file).exists()), None)
