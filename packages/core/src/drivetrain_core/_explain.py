"""Says in tables what a plan does and why, and what could be used on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drivetrain_core._errors import PlanError, PluginError
from drivetrain_core._plugins import OPTIMIZATIONS, installed
from drivetrain_core._registry import available, failures, find
from drivetrain_core.builtin import BUILTINS

if TYPE_CHECKING:
    from drivetrain_core._optimization import Optimization
    from drivetrain_core._plan import Plan

__all__ = [
    "explain_plan",
    "list_optimizations",
    "plan_problems",
    "show_optimizations",
]


def plan_problems(plan: Plan) -> dict[int, str]:
    """Returns why choices of a plan can be applied nowhere, by their places.

    Example:
        >>> from drivetrain_core import Choice, Plan
        >>> plan = Plan(choices=(Choice("micro_batch", {"num": 0}),))
        >>> plan_problems(plan)
        {0: 'micro_batch: option num must be at least 1, got 0 (CONFIG)'}
    """
    found = {}
    for place, choice in enumerate(plan.choices):
        try:
            find(choice.name).normalize(choice.config)
        except (PlanError, PluginError) as error:
            found[place] = str(error)
    return found


def explain_plan(plan: Plan, console: Console | None = None) -> None:
    """Prints what a plan does, what it measured, and why it was chosen.

    Beside a choice that can be applied nowhere it says why.
    """
    console = console or Console()
    problems = plan_problems(plan)
    console.print(str(plan), style="bold", markup=False)
    for title, part in (("made", plan.made), ("measured", plan.measured)):
        if part:
            text = ", ".join(f"{key} {value}" for key, value in part.items())
            console.print(f"{title}: {text}", highlight=False, markup=False)
    for place, choice in enumerate(plan.choices):
        line = f"  {choice}: {problems.get(place) or _summary(choice.name)}"
        console.print(line, highlight=False, markup=False)
    if plan.why:
        table = Table(title="why")
        for column in ("slot", "chose", "because"):
            table.add_column(column, overflow="fold")
        for reason in plan.why:
            table.add_row(*map(Text, (reason.slot, reason.chose, reason.because)))
        console.print(table)
    if plan.rejected:
        table = Table(title="rejected")
        for column in ("plan", "code", "because", "fix"):
            table.add_column(column, overflow="fold")
        for rejected in plan.rejected:
            cells = (rejected.plan, rejected.code, rejected.because, rejected.fix)
            table.add_row(*map(Text, cells))
        console.print(table)


def _summary(name: str) -> str:
    """Returns the first sentence of an optimization's documentation."""
    try:
        text = type(find(name)).__doc__ or ""
    except (PlanError, PluginError) as error:
        return str(error)
    return text.strip().split("\n", 1)[0]


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
            key: list(option.choices) or option.default
            for key, option in options.items()
        },
        "numerics": optimization.numerics(defaults).name.lower(),
        "summary": _summary(name),
        "why_not": _why_not(name),
    }


def _broken_row(name: str, owner: str, why_not: str) -> dict[str, Any]:
    return {
        "name": name,
        "slot": "",
        "package": owner,
        "options": {},
        "numerics": "",
        "summary": "",
        "why_not": why_not,
    }


def _why_not(name: str) -> str:
    """Returns why an optimization cannot be used with a common model on this machine."""
    from drivetrain_core._errors import Code
    from drivetrain_core._optimization import Reject
    from drivetrain_core._typical import typical_context

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
    table = Table(box=None, padding=(0, 1))
    for column in ("name", "package", "options", "here"):
        # A name is there to be copied.
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for row in rows:
        options = ", ".join(
            f"{key}={_values(value)}" for key, value in row["options"].items()
        )
        here = f"no: {row['why_not']}" if row["why_not"] else "yes"
        cells = (row["name"], row["package"], options, here)
        table.add_row(*map(Text, cells), style="dim" if row["why_not"] else "")
    (console or Console()).print(table)


def _values(value: object) -> str:
    return "|".join(str(v) for v in value) if isinstance(value, list) else str(value)
