"""Start of the main job, as the command line describes it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from drivetrain.quickstart._job import Job, Target
from drivetrain.quickstart._main_job import MainJob

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
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    return MainJob(job, target, Path(arguments.out), console).run()
