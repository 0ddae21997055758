"""`drivetrain apply`: a script run to its end under the plan of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core._scripts.run import apply_plan

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> int:
    """Runs the script."""
    apply_plan(arguments.plan, arguments.script, arguments.arguments)
    return 0
