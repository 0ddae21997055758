"""Public names that are imported when they are first used, listed once in a stub.

As SPEC 1 of Scientific Python has it, a stub `.pyi` beside a module imports what the module
offers. Type checkers read it, and at run time `attach_stub` does.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["attach_stub", "read_beside"]


def attach_stub(
    module: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a module with a stub.

    Args:
        module: The module, as its `__name__`.
        file: Its file, as its `__file__`; the stub lies beside it.

    Example:
        A module that offers everything of its stub:

        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "offers.py")
        >>> _ = file.with_suffix(".pyi").write_text("from json import loads as loads")
        >>> load, _, names = attach_stub("json", str(file))
        >>> names, load("loads").__name__
        (['loads'], 'loads')
    """
    homes: dict[str, str] = {}
    stub = str(Path(file).with_suffix(".pyi"))
    for node in ast.parse(read_beside(module, stub)).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            homes |= dict.fromkeys((alias.name for alias in node.names), node.module)
    names = sorted(homes, key=lambda n: (not n.isupper(), not n[:1].isupper(), n))

    def load(name: str) -> Any:
        if name not in homes:
            message = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules.get(module))
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return load, lambda: list(names), names


def read_beside(module: str, path: str) -> str:
    """Returns a text that lies beside a module, in a zip archive as well.

    Args:
        module: The module, as its `__name__`.
        path: Of the text.

    Example:
        >>> import json
        >>> "JSON" in read_beside("json", json.__file__)
        True
    """
    loader = getattr(sys.modules.get(module), "__loader__", None)
    if loader is not None and hasattr(loader, "get_data"):
        data: bytes = loader.get_data(path)
        return data.decode()
    return Path(path).read_text("utf-8")
