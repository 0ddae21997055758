"""Modules of functions that came to a trial by value, and that it could not import."""

from __future__ import annotations

import gc
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def provide_modules(names: Collection[str]) -> None:
    """Makes the modules of functions that came by value, in the process they came to.

    Such a function has its globals with it, and its module is not there; `__main__` is
    another one. Whoever looks a global up by the name of the module, as the compiler does
    for a function that it meets inside another one, then finds it there.

    Args:
        names: The modules that what came was defined in.
    """
    made: dict[str, ModuleType] = {}
    for value in gc.get_objects():
        # Not by `isinstance`, at which objects that load lazily do so.
        if type(value) is not FunctionType:
            continue
        name = value.__globals__.get("__name__")
        if name not in names or value.__module__ != name:
            continue
        here = sys.modules.get(name)
        # The `__main__` of a process that was sent something is its own program.
        if here is not None and name != "__main__":
            continue
        if here is not None and value.__globals__ is vars(here):
            continue
        module = made.setdefault(name, ModuleType(name))
        vars(module).update(value.__globals__)
        if value.__qualname__ == value.__name__:
            vars(module).setdefault(value.__name__, value)
    sys.modules.update(made)
