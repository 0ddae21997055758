"""Finds what other packages offer, by entry point, and loads one thing at a time.

A package offers something under a group in its own `pyproject.toml`:

    [project.entry-points."drivetrain.optimizations"]
    agd = "drivetrain_optim.plugin:AGD"

Looking a name up reads the metadata of the installed distributions, once a group, and
imports nothing; only the entry point that is asked for is imported. All functions here
may be called from any thread.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core._errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint, EntryPoints

logger = logging.getLogger(__name__)

OPTIMIZATIONS = "drivetrain.optimizations"
"""Classes that implement `Optimization`."""

SERVICES = "drivetrain.services"
"""Callables that make a provider of one of the protocols in `services`."""

COMMANDS = "drivetrain.commands"
"""Functions `populate_parser(parser)`, each a subcommand of `drivetrain`."""

ACCELERATORS = "drivetrain.accelerators"
"""Callables that make an `Accelerator`, each named as the type of its devices."""

CHECKS = "drivetrain.checks"
"""Functions that return a state (`ok`, `warn` or `fail`) and a detail for the doctor."""


class PluginInfo(NamedTuple):
    """An entry point that is installed, whether or not it would load.

    Args:
        name: What it is called in its group.
        distribution: The installed distribution that declares it.
        version: The version of that distribution.
        target: What it loads, as `module:attribute`.

    Example:
        >>> str(PluginInfo("agd", "drivetrain-optim", "0.1.0", "drivetrain_optim:AGD"))
        'agd (drivetrain-optim 0.1.0, drivetrain_optim:AGD)'
    """

    name: str
    distribution: str
    version: str
    target: str

    @property
    def qualified_name(self) -> str:
        """Returns `distribution:name`, which no other distribution can claim."""
        return f"{self.distribution}:{self.name}"

    def __str__(self) -> str:
        """Returns the name and where it comes from, for tables and messages."""
        return f"{self.name} ({self.distribution} {self.version}, {self.target})"


def installed(group: str) -> tuple[PluginInfo, ...]:
    """Returns the entry points of a group, by name, without importing any of them.

    Args:
        group: The entry-point group, such as `OPTIMIZATIONS`.

    Example:
        >>> [plugin.name for plugin in installed("drivetrain.no-such-group")]
        []
    """
    return tuple(_scan(group, tuple(sys.path)))


def find_plugin(group: str, name: str) -> PluginInfo | None:
    """Returns the one entry point that a name stands for, or None.

    Args:
        group: The entry-point group.
        name: A name in that group, or `distribution:name`.

    Raises:
        PluginError: Two distributions declare the name, and it does not say which.

    Example:
        >>> find_plugin("drivetrain.services", "no-such-service") is None
        True
    """
    found = [plugin for plugin in installed(group) if plugin.name == name]
    if not found and ":" in name:
        distribution, _, name = name.partition(":")
        wanted = _normalized(distribution)
        found = [
            plugin
            for plugin in installed(group)
            if plugin.name == name and _normalized(plugin.distribution) == wanted
        ]
    if len(found) > 1:
        raise PluginError(_clash(group, name, found))
    return found[0] if found else None


def load_plugin(group: str, name: str) -> object:
    """Returns what an entry point names, importing its module at the first call.

    Args:
        group: The entry-point group.
        name: A name in that group, or `distribution:name` where two distributions
            declare the same one.

    Raises:
        PluginError: No such entry point is installed, two distributions declare it, or
            it does not import. The message says which distribution, why, and what to
            do; the cause is chained.

    Example:
        >>> load_plugin("drivetrain.no-such-group", "agd")
        Traceback (most recent call last):
        ...
        drivetrain_core._errors.PluginError: no plug-in 'agd' in the group \
'drivetrain.no-such-group'; installed: none. Install the package that offers it, or \
declare it in your pyproject.toml: [project.entry-points."drivetrain.no-such-group"] \
agd = "your_module:your_object"
    """
    plugin = find_plugin(group, name)
    if plugin is None:
        raise PluginError(_unknown(group, name))
    entry_point = _scan(group, tuple(sys.path))[plugin]
    try:
        return entry_point.load()
    # A plug-in may raise anything while it is imported, or even leave: it is reported
    # as that plug-in's failure, with the cause chained.
    except (Exception, SystemExit) as error:
        raise PluginError(_broken(group, plugin, error)) from error


def clear_plugin_cache() -> None:
    """Forgets what is installed, for a process that has just installed something.

    Example:
        >>> clear_plugin_cache()
    """
    _scan.cache_clear()


@functools.lru_cache(maxsize=64)
def _scan(group: str, path: tuple[str, ...]) -> dict[PluginInfo, EntryPoint]:
    """Reads the metadata of all distributions; `path` is the key of the cache only."""
    del path
    # Imported here since it takes 30 ms, and most programs load no plug-in.
    from importlib import metadata

    found: dict[PluginInfo, EntryPoint] = {}
    try:
        declared = metadata.entry_points(group=group)
    except Exception:  # noqa: BLE001 - One that cannot be read hides all others.
        declared = _readable(group)
    for entry_point in declared:
        distribution = entry_point.dist
        name = _field(distribution, "Name") or "unknown-distribution"
        version = _field(distribution, "Version") or "unknown"
        plugin = PluginInfo(entry_point.name, name, version, entry_point.value)
        found[plugin] = entry_point
    return {plugin: found[plugin] for plugin in sorted(found)}


def _readable(group: str) -> EntryPoints:
    """Reads each distribution by itself, and leaves out what cannot be read."""
    from importlib import metadata

    found: dict[str, list[EntryPoint]] = {}
    for distribution in metadata.distributions():
        try:
            points = list(distribution.entry_points.select(group=group))
        except Exception as error:  # noqa: BLE001 - Whatever parsing runs into.
            name = _field(distribution, "Name")
            logger.warning("the entry points of %s cannot be read: %r", name, error)
        else:
            # The first one found is the one that an import would take.
            found.setdefault(_normalized(_field(distribution, "Name")), points)
    return metadata.EntryPoints(one for points in found.values() for one in points)


def _field(distribution: Distribution | None, name: str) -> str:
    """Returns a field of a distribution's metadata; nothing where it is missing."""
    found = distribution.metadata.get_all(name) if distribution else None
    return str(found[0]) if found else ""


def versions() -> list[str]:
    """Returns the packages of Drivetrain that are installed, each with its version."""
    from importlib import metadata

    found: dict[str, str] = {}
    for one in metadata.distributions():
        name = _normalized(_field(one, "Name"))
        if name == "drivetrain" or name.startswith("drivetrain-"):
            # The first one found is the one that an import would take.
            found.setdefault(name, one.version)
    return [f"{name} {found[name]}" for name in sorted(found)]


def _normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _clash(group: str, name: str, found: list[PluginInfo]) -> str:
    claims = ", ".join(f"{p.distribution} {p.version} ({p.target})" for p in found)
    message = f"the plug-in {name!r} of {group!r} is declared more than once: {claims}"
    forms = sorted({plugin.qualified_name for plugin in found})
    if len(forms) == 1:
        return f"{message}. Ask the authors of {found[0].distribution} to declare one"
    choice = " or ".join(repr(form) for form in forms)
    return (
        f"{message}. Uninstall one of them, or write {choice} if you name it yourself"
    )


def _unknown(group: str, name: str) -> str:
    # Imported here since it takes 5 ms, and serves only this message.
    from difflib import get_close_matches

    plugins = installed(group)
    names = [plugin.name for plugin in plugins]
    asked = name.rpartition(":")[2]
    near = [
        plugin.qualified_name if ":" in name else plugin.name
        for match in get_close_matches(asked, sorted(set(names)), n=3)
        for plugin in plugins
        if plugin.name == match
    ]
    distribution = name.rpartition(":")[0]
    if distribution and not near:
        return f"no plug-in {name!r} is installed: pip install --upgrade {distribution}"
    hint = f"; nearest: {', '.join(dict.fromkeys(near))}" if near else ""
    listing = ", ".join(str(plugin) for plugin in plugins) or "none"
    return (
        f"no plug-in {name!r} in the group {group!r}{hint}; installed: {listing}. "
        "Install the package that offers it, or declare it in your pyproject.toml: "
        f'[project.entry-points."{group}"] {asked} = "your_module:your_object"'
    )


def _broken(group: str, plugin: PluginInfo, error: BaseException) -> str:
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    module = plugin.target.partition(":")[0].strip()
    missing = getattr(error, "name", None) or ""
    if (
        isinstance(error, ModuleNotFoundError)
        and missing.split(".")[0] != (module.split(".")[0])
    ):
        fix = f"install the module {missing!r} that it needs"
    else:
        fix = f'run `python -c "import {module}"` to see where it fails'
    return (
        f"the plug-in {plugin.name!r} of {group!r} does not load: {plugin.target} of "
        f"{plugin.distribution} {plugin.version} raised {cause}. Fix: {fix}, or "
        f"reinstall or remove it: pip install --force-reinstall {plugin.distribution}"
    )
