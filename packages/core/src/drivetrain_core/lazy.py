"""Public names that are imported when they are first used.

A package calls `load_export` in its `__getattr__`, and imports the same names under
`TYPE_CHECKING` for type checkers.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["load_export"]


def load_export(
    package: str, homes: Mapping[str, str], name: str, base: str | None = None
) -> Any:
    """Returns a public name of a package, and keeps it there.

    Args:
        package: The package, as its `__name__`.
        homes: The module of each public name, relative to the base.
        name: The name that was asked for.
        base: The package in which the modules lie; by default the package itself.

    Raises:
        AttributeError: The package has no such name.

    Example:
        >>> load_export("json", {"JSONDecoder": "decoder"}, "JSONDecoder").__name__
        'JSONDecoder'
    """
    if name not in homes:
        message = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=sys.modules.get(package))
    value = getattr(import_module(f"{base or package}.{homes[name]}"), name)
    setattr(sys.modules[package], name, value)
    return value
