"""Start of the main job, as the command line describes it."""

from __future__ import annotations

import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from drivetrain.quickstart._job import Job, Target
from drivetrain.quickstart._main_job import MainJob
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> int:
    """Runs the main job; returns 0 when every promise was kept, else 1."""
    job = Job.here()
    if arguments.seconds is not None:
        job = replace(job, budget=replace(job.budget, seconds=arguments.seconds))
    if arguments.steps is not None:
        job = replace(job, steps=arguments.steps)
    target = job.target()
    if arguments.script is not None:
        target = Target(arguments.script, tuple(arguments.arguments))
        if not Path(target.script).is_file():
            message = f"there is no script {target.script!r}"
            raise ProgramError(message)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    if arguments.script is not None and not _names_train_step(target.script):
        line = (
            f"{target.script} does not name train_step: what is trained here makes its "
            "steps with that, and a loop that does not may take less of the plan"
        )
        console.print(line, markup=False)
    if target.arguments and arguments.script is not None:
        given = shlex.join(target.arguments)
        line = (
            f"{target.script} is run with {given}; options of quickstart come before it"
        )
        console.print(line, markup=False)
    # As an interrupt does, they let each part end the processes that it has started.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    return MainJob(job, target, Path(arguments.out), console).run()


def _names_train_step(script: str) -> bool:
    return b"train_step" in Path(script).read_bytes()
