"""Objects of modules that another process could not import travel by value.

A test file, a notebook, or a script that was loaded by its path is in no folder of
the import path; what it defines must be pickled whole.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import cloudpickle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


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
