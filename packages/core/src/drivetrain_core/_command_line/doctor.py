"""`drivetrain doctor`: whether this machine and this installation work."""

from __future__ import annotations

import functools
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_core._errors import PluginError
from drivetrain_core._plugins import (
    ACCELERATORS,
    CHECKS,
    COMMANDS,
    OPTIMIZATIONS,
    SERVICES,
    installed,
    load_plugin,
    versions,
)
from drivetrain_core._registry import find
from drivetrain_core.commands import busy
from drivetrain_core.services._lookup import service_factory

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from drivetrain_core._context import DeviceFacts
    from drivetrain_core._plugins import PluginInfo

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
# Services that `accelerate` makes, with nothing.
_WITHOUT_ARGUMENTS = {"model_layout", "plan_search"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked.

    Args:
        name: What.
        state: `ok`, `warn` or `fail`.
        detail: What was found, and what to do when it is not ok.
    """

    name: str
    state: str
    detail: str


def run(arguments: argparse.Namespace) -> int:
    """Prints every check; returns 1 if one has failed."""
    with busy("checking this machine"):
        checks = examine()
    if arguments.json:
        rows = [asdict(check) for check in checks]
        sys.stdout.write(f"{json.dumps(rows, indent=2)}\n")
    else:
        show_checks(checks)
    return 0 if all(check.state != "fail" for check in checks) else 1


def examine() -> list[Check]:
    """Returns every check, in an order that a reader can follow."""
    checks = [
        Check("python", "ok", f"{platform.python_version()} at {sys.executable}"),
        _guarded("torch", _torch),
        _guarded("device", _device),
        _guarded("packages", lambda: ("ok", ", ".join(versions()))),
    ]
    checks += _plugins()
    checks += [
        _guarded("torch.compile", _compile),
        *_checks_of_packages(),
        _guarded("process groups", _process_groups),
    ]
    return checks


def _guarded(name: str, check: Callable[[], tuple[str, str]]) -> Check:
    try:
        state, detail = check()
    except PluginError as error:
        return Check(name, "fail", str(error))
    # A doctor reports a failure and goes on.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return Check(name, "fail", f"{type(error).__name__}: {error}")
    if state not in _STYLES:
        return Check(name, "fail", f"the check returned the state {state!r}: {detail}")
    return Check(name, state, str(detail))


def _torch() -> tuple[str, str]:
    import torch

    parts = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if parts < (2, 11):
        return "fail", f"{torch.__version__}; 2.11 or later is needed"
    if parts > (2, 15):
        return "warn", f"{torch.__version__}; tested up to 2.15"
    return "ok", torch.__version__


def _probed() -> DeviceFacts:
    # It imports torch, which may be what is wrong with this installation.
    from drivetrain_core._probe import default_device, probe_device

    return probe_device(default_device())


def _device() -> tuple[str, str]:
    facts = _probed()
    memory = facts.memory_bytes / (1 << 30)
    text = f"{facts.name} ({facts.type}), {memory:.0f} GiB, {facts.num_cores} cores"
    return "ok", text


def _plugins() -> list[Check]:
    checks = []
    for group in (OPTIMIZATIONS, SERVICES, COMMANDS, ACCELERATORS):
        for plugin in installed(group):
            name = f"{group.rpartition('.')[2]}: {plugin.name}"
            checks.append(_guarded(name, functools.partial(_load, group, plugin)))
    return checks


def _load(group: str, plugin: PluginInfo) -> tuple[str, str]:
    if group == OPTIMIZATIONS:
        find(plugin.qualified_name)
    elif group == SERVICES:
        # By its bare name, as `accelerate` asks for it: two providers are one too many.
        factory = service_factory(plugin.name)
        if plugin.name in _WITHOUT_ARGUMENTS:
            factory()
    else:
        load_plugin(group, plugin.qualified_name)
    return "ok", f"from {plugin.distribution}"


def _compile() -> tuple[str, str]:
    facts = _probed()
    if facts.can_compile:
        return "ok", f"{facts.compiler} finds what it needs"
    needed = facts.compiler_needs or f"a compiler for {facts.type}"
    return "warn", f"{needed} is missing: the slot 'compile' stays off"


def _checks_of_packages() -> list[Check]:
    return [
        _guarded(plugin.name.replace("_", " "), functools.partial(_ask, plugin))
        for plugin in installed(CHECKS)
    ]


def _ask(plugin: PluginInfo) -> tuple[str, str]:
    check: Any = load_plugin(CHECKS, plugin.qualified_name)
    state, detail = check()
    return state, detail


def _process_groups() -> tuple[str, str]:
    import torch.distributed as dist

    if not dist.is_available():
        return "warn", "torch was built without distributed: one rank only"
    known = (name for name in dist.Backend.backend_list if name != "undefined")
    found = filter(dist.is_backend_available, known)
    return "ok", f"{', '.join(found)}; WORLD_SIZE {os.environ.get('WORLD_SIZE', '1')}"


def show_checks(checks: list[Check]) -> None:
    """Prints the checks as a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 1))
    for check in checks:
        state = Text(check.state, style=_STYLES[check.state])
        table.add_row(state, Text(check.name), Text(check.detail))
    Console().print(table)
