"""`drivetrain list`: what each package offers, and what cannot be used here and why."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drivetrain_core._choice import Numerics, Reject
from drivetrain_core._command_line.explain import summary
from drivetrain_core._command_line.typical import typical_context
from drivetrain_core._errors import Code
from drivetrain_core._plugins import OPTIMIZATIONS, installed
from drivetrain_core._registry import available, failures, find
from drivetrain_core.builtin import BUILTINS
from drivetrain_core.commands import busy

if TYPE_CHECKING:
    import argparse

    from drivetrain_core._optimization import Optimization


def run(arguments: argparse.Namespace) -> int:
    """Prints what could be used on this machine."""
    with busy("looking at what is installed"):
        rows = list_optimizations()
    if arguments.json:
        sys.stdout.write(f"{json.dumps(rows, indent=2)}\n")
    else:
        show_optimizations(rows)
    return 0


def list_optimizations() -> list[dict[str, Any]]:
    """Returns what every package offers: name, slot, package, options, and problems."""
    owners = {info.name: info.distribution for info in installed(OPTIMIZATIONS)}
    owners |= dict.fromkeys(BUILTINS, "drivetrain-core")
    rows = []
    for name, optimization in available().items():
        owner = owners.get(name, "here")
        try:
            rows.append(_row(name, optimization, owner))
        except Exception as error:  # noqa: BLE001
            # A package of others may fail in any way.
            rows.append(_broken_row(name, owner, f"it fails when asked: {error!r}"))
    rows += [
        _broken_row(name, owners.get(name, ""), str(error))
        for name, error in failures().items()
    ]
    return rows


def _row(name: str, optimization: Optimization, owner: str) -> dict[str, Any]:
    options = getattr(optimization, "options", {})
    defaults = optimization.normalize(None)
    return {
        "name": name,
        "slot": optimization.slot.value,
        "package": owner,
        "options": {
            # Of several, the one that is used unasked stands first.
            key: [option.default, *(c for c in option.choices if c != option.default)]
            if option.choices
            else option.default
            for key, option in options.items()
        },
        "numerics": optimization.numerics(defaults).name.lower(),
        "summary": summary(name),
        "tried": _tried(optimization),
        "why_not": _why_not(name),
    }


def _broken_row(name: str, owner: str, why_not: str) -> dict[str, Any]:
    unknown = dict.fromkeys(("slot", "numerics", "summary", "tried"), "")
    known = {"name": name, "package": owner, "options": {}, "why_not": why_not}
    return unknown | known


def _tried(optimization: Optimization) -> str:
    """Returns when a search of a common program on this machine tries an optimization."""
    proposed = [*map(optimization.normalize, optimization.configs(typical_context()))]
    if not proposed:
        return "when named"
    free = optimization.numerics(proposed[0]) is Numerics.CHANGES_ALGORITHM
    return "with changes_algorithm" if free else "by default"


def _why_not(name: str) -> str:
    """Returns why an optimization cannot be used with a common model on this machine."""
    optimization = find(name)
    context = typical_context()
    for raw in [*optimization.configs(context), None]:
        config = optimization.normalize(raw)
        answer = optimization.check(context, config, ())
        if not isinstance(answer, Reject):
            return ""
    assert isinstance(answer, Reject)
    about_machine = (Code.NEEDS_DEVICE, Code.NEEDS_LIBRARY, Code.NEEDS_WORLD)
    if answer.code not in about_machine:
        return f"depends on the program: {answer.because}"
    return f"{answer.because}; {answer.fix}" if answer.fix else answer.because


def show_optimizations(
    rows: list[dict[str, Any]], console: Console | None = None
) -> None:
    """Prints the rows of `list_optimizations` as a table."""
    caption = "where an option takes one of several values, the first is its default"
    table = Table(box=None, padding=(0, 1), caption=caption, caption_justify="left")
    for column in ("name", "package", "options", "here"):
        # A name is there to be copied.
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for row in rows:
        options = ", ".join(
            f"{key}={_values(value)}" for key, value in row["options"].items()
        )
        here = f"no: {row['why_not']}"
        if not row["why_not"]:
            here = f"yes, tried {row['tried']}"
        cells = (row["name"], row["package"], options, here)
        table.add_row(*map(Text, cells), style="dim" if row["why_not"] else "")
    (console or Console()).print(table)


def _values(value: object) -> str:
    return "|".join(str(v) for v in value) if isinstance(value, list) else str(value)
