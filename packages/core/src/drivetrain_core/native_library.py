"""Compiled parts of packages, found where they were installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

__all__ = ["find_library", "load_extension"]


def load_extension(module: str) -> tuple[Any, str | None]:
    """Returns an extension module, or None and why it is not there.

    Args:
        module: Its name.

    Example:
        >>> load_extension("drivetrain_core.no_such_module")
        (None, "the package was installed without a C++ compiler or Python's headers")
    """
    try:
        return importlib.import_module(module), None
    except ImportError as error:
        # What the module itself imports may be missing, too.
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            because = "without a C++ compiler or Python's headers"
            return None, f"the package was installed {because}"
        return None, f"its library does not load: {error}"


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
