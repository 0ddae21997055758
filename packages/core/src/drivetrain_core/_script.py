"""Runs a user's script with other arguments to `accelerate` than it has written."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core._errors import ProgramError
from drivetrain_core._overrides import Overrides, overriding
from drivetrain_core._plan import Plan
from drivetrain_core._replay import Script, run_script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_core._accelerated import Accelerated

__all__ = ["apply_plan", "search_script"]


class _Found(BaseException):
    """Ends the script once its search is over; no usual handler catches it."""


def search_script(
    script: str, arguments: Sequence[str], budget: str | None, plan_out: str
) -> Accelerated:
    """Runs a script up to its `accelerate`, which searches, and returns the result.

    Args:
        script: The path of the script.
        arguments: Its command line.
        budget: Instead of the script's budget, if not None.
        plan_out: Where the plan is written.

    Raises:
        ProgramError: The script is missing, or ends without calling `accelerate`.
    """
    found: list[Accelerated] = []

    def stop(accelerated: Accelerated) -> None:
        found.append(accelerated)
        raise _Found

    overrides = Overrides(
        strategy="auto", budget=budget, plan_out=plan_out, on_accelerated=stop
    )
    try:
        _run(script, arguments, overrides)
    except BaseException:
        # A script may answer to the stop with an end of its own.
        if not found:
            raise
    if not found:
        raise ProgramError(_never_called(script))
    return found[0]


def apply_plan(plan: str, script: str, arguments: Sequence[str]) -> None:
    """Runs a script to its end under a plan.

    Args:
        plan: The path of the plan.
        script: The path of the script.
        arguments: Its command line.

    Raises:
        PlanError: The plan cannot be read, or cannot be used here.
        ProgramError: The script is missing, or never called `accelerate`.
    """
    calls: list[Accelerated] = []
    Plan.load(plan)  # A file that is none is told of before the script runs.
    # The script may change the folder, and errors about a value name the file.
    overrides = Overrides(strategy=Path(plan).absolute(), on_accelerated=calls.append)
    _run(script, arguments, overrides)
    if not calls:
        raise ProgramError(_never_called(script))


def _run(script: str, arguments: Sequence[str], overrides: Overrides) -> None:
    with overriding(dataclasses.replace(overrides, started=(script, arguments))):
        run_script(
            Script(path=script, arguments=tuple(arguments), folder=str(Path.cwd()))
        )


def _never_called(script: str) -> str:
    return f"{script} ended without calling drivetrain_core.accelerate"
