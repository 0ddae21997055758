"""Options of `drivetrain search` and of `drivetrain diff`."""

from __future__ import annotations

import argparse
import re

from drivetrain_core import Budget, ProgramError
from drivetrain_core.commands import add_script, deferred


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `drivetrain search`, and sets what it runs."""
    parser.description = "search a plan for a script"
    parser.set_defaults(run=deferred("drivetrain_search.command:run"))
    parser.add_argument(
        "--budget",
        type=_budget,
        help="such as 90s, 10m or 1h (default: the script's own)",
    )
    parser.add_argument(
        "--plan",
        default="drivetrain_plan.yaml",
        help="where to write the plan (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--picture", type=_png, help="where to draw the trials, as .png"
    )
    parser.add_argument(
        "--html", metavar="PATH", help="where to write the report, as one HTML page"
    )
    add_script(parser)


def populate_diff_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `drivetrain diff`, and sets what it runs."""
    parser.description = "say how two plans differ"
    parser.set_defaults(run=deferred("drivetrain_search.plan_diff:run"))
    parser.add_argument("before", help="a plan file")
    parser.add_argument("after", help="another one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help="end with the status 1 if the strategies differ",
    )


def _budget(text: str) -> str:
    """Returns a budget as `accelerate` takes it; a number is one of seconds."""
    budget = f"{text}s" if re.fullmatch(r"\d+(\.\d+)?", text) else text
    try:
        Budget.of(budget)
    except ProgramError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return budget


def _png(path: str) -> str:
    if not path.endswith(".png"):
        message = f"a picture's path must end in .png, got {path!r}"
        raise argparse.ArgumentTypeError(message)
    return path
