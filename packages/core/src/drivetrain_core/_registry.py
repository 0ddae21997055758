"""All optimizations by name: built-ins, those of other packages, and registered ones."""

from __future__ import annotations

import difflib
import functools
import importlib
from typing import TYPE_CHECKING

from drivetrain_core import _elsewhere
from drivetrain_core._errors import Code, PlanError, PluginError
from drivetrain_core._optimization import Optimization
from drivetrain_core._plugins import OPTIMIZATIONS, installed, load_plugin
from drivetrain_core.builtin import BUILTINS

if TYPE_CHECKING:
    from collections.abc import Mapping

_registered: dict[str, Optimization] = {}


def find(name: str) -> Optimization:
    """Returns the optimization of a name.

    Args:
        name: A built-in, a registered name, or that of an installed package; of two
            packages that offer one name, `distribution:name`.

    Raises:
        PlanError: There is none; the nearest names are in the message.
        PluginError: Its package does not load.

    Example:
        >>> find("compile").slot
        <Slot.COMPILE: 'compile'>
    """
    if name in _registered:
        return _registered[name]
    return _load(name)


def available() -> Mapping[str, Optimization]:
    """Returns every optimization that loads, by name.

    A package that does not load is left out and stands in `failures()`.
    """
    return {**_load_all()[0], **_registered}


def failures() -> Mapping[str, PluginError]:
    """Returns why the optimizations that `available` left out did not load."""
    return _load_all()[1]


def register(optimization: Optimization) -> None:
    """Adds an optimization to this process, for notebooks and tests.

    Trials run in processes of their own and do not see it, unless it stands in an
    importable module that the program imports.

    Raises:
        PluginError: It breaks the protocol, or its name is taken.
    """
    _require(optimization, getattr(optimization, "name", repr(optimization)))
    name = optimization.name
    plugins = {info.name for info in installed(OPTIMIZATIONS)}
    if name in _registered or name in BUILTINS or name in plugins:
        message = f"an optimization named {name!r} exists already; choose another name"
        raise PluginError(message)
    _registered[name] = optimization


def unregister(name: str) -> None:
    """Takes back what `register` added; unknown names are ignored."""
    _registered.pop(name, None)


def registered() -> tuple[Optimization, ...]:
    """Returns what `register` added, for the processes of trials."""
    return tuple(_registered.values())


def forget_loaded() -> None:
    """Forgets what entry points gave, for a process that has just installed something."""
    _load.cache_clear()


def _load_all() -> tuple[dict[str, Optimization], dict[str, PluginError]]:
    """Returns the optimizations that load, and why the others do not."""
    found, failed = {}, {}
    for name in [*BUILTINS, *(info.name for info in installed(OPTIMIZATIONS))]:
        try:
            found[name] = find(name)
        except PluginError as error:
            failed[name] = error
    return found, failed


@functools.cache
def _load(name: str) -> Optimization:
    if name in BUILTINS:
        module, _, attribute = BUILTINS[name].partition(":")
        built: Optimization = getattr(importlib.import_module(module), attribute)()
        return built
    plugins = {info.name for info in installed(OPTIMIZATIONS)}
    if name not in plugins and ":" not in name:
        known = sorted({*BUILTINS, *plugins, *_registered})
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(known)}"
        raise PlanError(
            Code.UNKNOWN,
            name,
            because=f"there is no such optimization; {hint}",
            fix=f"pip install {_elsewhere.OPTIMIZATIONS[name]}"
            if name in _elsewhere.OPTIMIZATIONS
            else "see `drivetrain list`, or install the package that offers it",
        )
    loaded = load_plugin(OPTIMIZATIONS, name)
    try:
        instance = loaded() if isinstance(loaded, type) else loaded
        _require(instance, name)
    except PluginError:
        raise
    except (Exception, SystemExit) as error:  # Others' packages fail in any way.
        message = f"the optimization {name!r} cannot be created: {error!r}"
        raise PluginError(message) from error
    assert isinstance(instance, Optimization)
    return instance


def _require(instance: object, name: str) -> None:
    if isinstance(instance, Optimization):
        return
    needed = sorted(
        attribute
        for attribute in (
            *Optimization.__annotations__,
            *("numerics", "normalize", "configs", "check", "estimate", "apply"),
        )
        if not hasattr(instance, attribute)
    )
    message = (
        f"{name!r} is no optimization, it lacks {', '.join(needed)}; "
        "subclass drivetrain_core.BaseOptimization"
    )
    raise PluginError(message)
