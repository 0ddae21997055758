"""Modules that moved to another package: their old names still work.

The old package says what moved; each use of an old name warns. Old names go away in the
next minor version.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType, ModuleType

__all__ = ["forward_modules"]


def forward_modules(moved: Mapping[str, str]) -> None:
    """Lets an import of a module's old name import the module at its new place.

    Submodules follow. The import warns with a `DeprecationWarning`; where the new package
    is not installed it is an `ImportError` that says what to install.

    Args:
        moved: The new dotted name by the old one.

    Example:
        >>> forward_modules({"drivetrain_core.old_json": "json"})
        >>> with warnings.catch_warnings(action="ignore"):
        ...     from drivetrain_core.old_json import decoder
        >>> decoder.__name__
        'json.decoder'
    """
    if _FORWARDER not in sys.meta_path:
        # Before the finder of paths, which would load a second copy under the old name.
        sys.meta_path.insert(0, _FORWARDER)
    _FORWARDER.moved.update(moved)


class _Forwarder(MetaPathFinder, Loader):
    def __init__(self) -> None:
        self.moved: dict[str, str] = {}

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        del path, target
        new = self._new_name(fullname)
        if new is None:
            return None
        package = new.partition(".")[0]
        if package not in sys.modules and find_spec(package) is None:
            pip = f"pip install {package.replace('_', '-')}"
            message = f"{fullname} is now {new}: {pip}"
            raise ModuleNotFoundError(message, name=package)
        found = find_spec(new)
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, self, loader_state=found, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = spec.loader_state.name
        warnings.warn(f"{spec.name} is now {new}", DeprecationWarning, stacklevel=2)
        return import_module(new)

    def exec_module(self, module: ModuleType) -> None:
        # The import has given the module the specification of its old name.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    def get_code(self, fullname: str) -> CodeType | None:
        """Returns what `python -m` runs under the old name."""
        new = self._new_name(fullname)
        spec = find_spec(new) if new else None
        assert spec is not None
        return (
            spec.loader.get_code(spec.name)
            if isinstance(spec.loader, InspectLoader)
            else None
        )

    def _new_name(self, name: str) -> str | None:
        head, tail = name, ""
        while head:
            if head in self.moved:
                return self.moved[head] + tail
            head, _, last = head.rpartition(".")
            tail = f".{last}{tail}"
        return None


_FORWARDER = _Forwarder()
