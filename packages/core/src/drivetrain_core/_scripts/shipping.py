"""Objects of modules that another process could not import travel by value.

A test file, a notebook, or a script that was loaded by its path is in no folder of
the import path; what it defines must be pickled whole.
"""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

import cloudpickle

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from importlib.machinery import ModuleSpec


def is_importable(module: ModuleType) -> bool:
    """Returns whether a fresh process with this import path finds a module's file.

    Example:
        >>> import json
        >>> is_importable(json)
        True
    """
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or file is None:
        return module.__name__ != "__main__"
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    parts = module.__name__.split(".")
    for i in range(len(parts)):
        name = ".".join(parts[: i + 1])
        # Not `importlib.util.find_spec`, which asks `sys.modules` first. The finders
        # of editable installs are among these, and in a fresh process as well.
        specs = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next((found for found in specs if found is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and bool(spec.origin == file)


@contextmanager
def by_value(*names: str) -> Iterator[tuple[str, ...]]:
    """Lets cloudpickle pickle these modules whole, those that cannot be imported.

    Yields the names of all that travel so, `__main__` among them.
    """
    known = cloudpickle.list_registry_pickle_by_value()
    wanted = [
        sys.modules[name]
        for name in dict.fromkeys(names)
        if name in sys.modules and name not in known
        # What `__main__` defines, cloudpickle pickles by value anyway.
        if name != "__main__" and not is_importable(sys.modules[name])
    ]
    for module in wanted:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield ("__main__", *known, *(module.__name__ for module in wanted))
    finally:
        for module in wanted:
            cloudpickle.unregister_pickle_by_value(module)


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
