"""The command `drivetrain-elastic demo`: workers that are killed, and a training that is not."""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from drivetrain_core.commands import integer

if TYPE_CHECKING:
    import argparse

    from drivetrain_elastic.testing import LocalJob

__all__ = ["populate_demo_parser"]

_START_S, _RECOVER_S = 120.0, 60.0


def populate_demo_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    parser.add_argument("--workers", type=integer(1), default=4, metavar="N")
    parser.add_argument("--kills", type=integer(0), default=3, metavar="N")
    parser.add_argument("--steps", type=integer(1), default=200, metavar="N")
    parser.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from drivetrain_elastic.testing import LocalJob, LocalJobError

    options = ["--nproc-per-node", str(arguments.workers)]
    program = ["--steps", str(arguments.steps), "--pause-s", "0.04"]
    _say(f"{arguments.workers} workers train a byte-level language model")
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalJob(folder, options=options, arguments=program) as job,
    ):
        job.start_node()
        job.wait_for_step(5, num_workers=arguments.workers, timeout_s=_START_S)
        kills = [_kill_one(job, arguments.workers) for _ in range(arguments.kills)]
        codes = job.wait(600.0)
        pauses = [_pause_s(job.steps(), *kill) for kill in kills]
        last = [line for line in job.text().splitlines() if "held-out" in line]
    if set(codes.values()) != {0} or not last:
        message = f"the training has ended with {codes}"
        raise LocalJobError(message)
    _say(last[0])
    if pauses:
        pause = statistics.median(pauses)
        _say(
            f"{len(pauses)} workers were killed; the others paused for {pause:.2f} s, and "
            "no step was lost"
        )
    return 0


def _kill_one(job: LocalJob, num_workers: int) -> tuple[float, int]:
    """Kills a worker and waits for another one; returns when, and in which world."""
    status = job.status()
    members = job.members()
    victim = random.choice(members)
    _say(f"step {max(one.step for one in members)}: kill -9 of rank {victim.rank}")
    at_s = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    job.wait_for(lambda s: s.epoch > status.epoch, _RECOVER_S)
    step = max(one.step for one in members)
    job.wait_for_step(step + 20, num_workers=num_workers, timeout_s=_RECOVER_S)
    return at_s, status.epoch


def _pause_s(lines: list[dict[str, Any]], at_s: float, epoch: int) -> float:
    """Returns how long after a kill the next step had been computed."""
    first: float = min(one["at_s"] for one in lines if one["epoch"] > epoch)
    return first - at_s


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
