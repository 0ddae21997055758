"""`drivetrain explain`: what a plan does and why, in tables."""

from __future__ import annotations

import json
import sys
from dataclasses import astuple, fields
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drivetrain_core._errors import PlanError, PluginError, visible
from drivetrain_core._plan import Plan
from drivetrain_core._registry import find

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan of a file; returns 1 if it can be applied nowhere."""
    plan = Plan.load(arguments.plan)
    if arguments.json:
        sys.stdout.write(f"{json.dumps(plan.to_dict(), indent=2)}\n")
    else:
        explain_plan(plan)
    problems = plan_problems(plan)
    for problem in problems.values():
        said = visible(f"{arguments.plan} cannot be applied: {problem}")
        sys.stderr.write(f"drivetrain: {said}\n")
    return int(bool(problems))


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
    console.print(visible(str(plan)), style="bold", markup=False)
    for title, part in (("made", plan.made), ("measured", plan.measured)):
        if part:
            text = ", ".join(f"{key} {value}" for key, value in part.items())
            console.print(visible(f"{title}: {text}"), highlight=False, markup=False)
    for place, choice in enumerate(plan.choices):
        line = f"  {choice}: {problems.get(place) or summary(choice.name)}"
        console.print(visible(line), highlight=False, markup=False)
    for title, rows in (("why", plan.why), ("rejected", plan.rejected)):
        if rows:
            table = Table(title=title)
            for field in fields(rows[0]):
                table.add_column(field.name, overflow="fold")
            for row in rows:
                table.add_row(*(Text(visible(text)) for text in astuple(row)))
            console.print(table)


def summary(name: str) -> str:
    """Returns the first sentence of an optimization's documentation."""
    try:
        text = type(find(name)).__doc__ or ""
    except (PlanError, PluginError) as error:
        return str(error)
    return text.strip().split("\n", 1)[0]
