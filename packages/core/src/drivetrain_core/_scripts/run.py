"""Runs a user's script with other arguments to `accelerate` than it has written."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core._command_line.reach import reach_of
from drivetrain_core._errors import ProgramError
from drivetrain_core._plan import Plan
from drivetrain_core._scripts.overrides import Overrides, overriding
from drivetrain_core._scripts.replay import Script, run_script

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from drivetrain_core._accelerated import Accelerated
    from drivetrain_core._compose import Strategy
    from drivetrain_core.budget import Budget

logger = logging.getLogger(__name__)


class _Found(BaseException):
    """Ends the script once its program is built; no usual handler catches it."""


def search_script(
    script: str,
    arguments: Sequence[str],
    budget: str | Budget | None,
    plan_out: str | os.PathLike[str],
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
    out = str(Path(plan_out).absolute())  # The script may change the folder.
    overrides = Overrides(strategy="auto", budget=budget, plan_out=out)
    return _run_to_accelerate(script, arguments, overrides)


def build_script(
    script: str, arguments: Sequence[str], strategy: Strategy
) -> Accelerated:
    """Runs a script up to its `accelerate`, and returns its program under a plan.

    Whoever called it then trains in the script's place, with its model, optimizer and
    data; the rest of the script does not run.

    Args:
        script: The path of the script.
        arguments: Its command line.
        strategy: Instead of the script's strategy; `[]` for the program as written.

    Raises:
        PlanError: The strategy cannot be used here.
        ProgramError: The script is missing, or ends without calling `accelerate`.
    """
    return _run_to_accelerate(script, arguments, Overrides(strategy=strategy))


def _run_to_accelerate(
    script: str, arguments: Sequence[str], overrides: Overrides
) -> Accelerated:
    found: list[Accelerated] = []

    def stop(accelerated: Accelerated) -> None:
        found.append(accelerated)
        raise _Found

    try:
        _run(script, arguments, dataclasses.replace(overrides, on_accelerated=stop))
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
    _refuse_what_does_not_fit(script)
    # The script may change the folder.
    begun = Script(path=script, arguments=tuple(arguments), folder=str(Path.cwd()))
    started = dataclasses.replace(begun, path=str(Path(script).resolve()))
    with overriding(dataclasses.replace(overrides, started=started)):
        run_script(begun)


def _refuse_what_does_not_fit(script: str) -> None:
    """Tells of a script that does not call `accelerate` before it trains for nothing.

    Raises:
        ProgramError: It cannot come to the call.
    """
    reach = reach_of(script, names=["accelerate"])
    if reach.is_never:
        message = f"{script} was not run: neither it nor what it imports calls drivetrain_core.accelerate"
        raise ProgramError(message)
    if not reach.is_named and Path(script).is_file():
        logger.warning(
            "nothing in %s names drivetrain_core.accelerate, but %s: unless that calls it, "
            "the script runs to its end",
            *(script, reach.unknown),
        )


def _never_called(script: str) -> str:
    return f"{script} ended without calling drivetrain_core.accelerate"
