"""The command `drivetrain-elastic demo`: workers that are killed, and a training that is not."""

from __future__ import annotations

import os
import random
import signal
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any

from drivetrain_elastic.testing import LocalJob, LocalJobError

if TYPE_CHECKING:
    import argparse

_START_S, _RECOVER_S = 120.0, 60.0


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    options = ["--nproc-per-node", str(arguments.workers)]
    program = ["--steps", str(arguments.steps), "--pause-s", "0.04"]
    print(f"{arguments.workers} workers train a byte-level language model", flush=True)
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
    print(last[0])
    if pauses:
        pause = statistics.median(pauses)
        print(
            f"{len(pauses)} workers were killed; the others paused for {pause:.2f} s, and "
            "no step was lost"
        )
    return 0


def _kill_one(job: LocalJob, num_workers: int) -> tuple[float, int]:
    """Kills a worker and waits for another one; returns when, and in which world."""
    status = job.status()
    members = job.members()
    victim = random.choice(members)
    last = max(one.step for one in members)
    print(f"step {last}: kill -9 of rank {victim.rank}", flush=True)
    at_s = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    job.wait_for(lambda s: s.epoch > status.epoch, _RECOVER_S)
    job.wait_for_step(last + 20, num_workers=num_workers, timeout_s=_RECOVER_S)
    return at_s, status.epoch


def _pause_s(lines: list[dict[str, Any]], at_s: float, epoch: int) -> float:
    """Returns how long after a kill the next step had been computed."""
    first: float = min(one["at_s"] for one in lines if one["epoch"] > epoch)
    return first - at_s
