"""`drivetrain search`: a script's plan, searched, written and shown."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, cast

from rich.console import Console

from drivetrain_core.scripts import search_script
from drivetrain_search.report.html import require_writable_page
from drivetrain_search.report.report import Report, require_matplotlib

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> int:
    """Searches, and prints what was found."""
    if arguments.picture:
        require_matplotlib()  # Not after the search.
    if arguments.html:
        require_writable_page(arguments.html)
    with contextlib.ExitStack() as stack:
        if arguments.json:  # What the script prints is no part of it.
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        accelerated = search_script(
            arguments.script, arguments.arguments, arguments.budget, arguments.plan
        )
    if accelerated.report is None:  # Another rank searched.
        return 0
    report = cast("Report", accelerated.report)
    if arguments.picture:
        report.picture(arguments.picture)
    if arguments.html:
        report.html(arguments.html)
    if arguments.json:
        whole = {"plan": accelerated.plan.to_dict(), "report": report.to_dict()}
        sys.stdout.write(f"{json.dumps(whole, indent=2)}\n")
    else:
        Console().print(report.table())
        sys.stdout.write(f"plan: {accelerated.plan}\n")
        sys.stdout.writelines(
            f"because: {why.because}\n"
            for why in accelerated.plan.why
            if why.slot == "plan"
        )
    if not accelerated.plan.may_replace(arguments.plan):
        sys.stderr.write(
            f"drivetrain: {report.stopped}; {arguments.plan} keeps what an earlier "
            "search measured\n"
        )
        return 1
    if not arguments.json:
        sys.stdout.write(f"written to {arguments.plan}\n")
    return 0
