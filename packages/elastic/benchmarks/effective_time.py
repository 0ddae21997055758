"""A fault a minute on average: which share of the time is steps that count.

The same faults at the same times, under this package and under torchrun with checkpoints by
torch.distributed.checkpoint: workers of four are killed, or stopped so that only silence tells.
The share is steps x the usual time of a step / time, as MegaScale defines it
(arXiv 2402.15627, section 5).
"""

import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from peer_job import PeerJob
from peer_toy import Toy

from drivetrain_elastic import ElasticLoop, Schedule
from drivetrain_elastic.testing import LocalJob
from drivetrain_testing import Row

_RANKS = 4
_EVERY_S = 60.0
_LONG_S = 600.0
# Of torchrun's group: what hangs is noticed by it alone, and many jobs have 30 minutes.
_TIMEOUT_S = 10.0
_KINDS = {"kill": 0.7, "stop": 0.3}


def plan(seconds, seed=1):
    """Returns when which fault hits which rank: a pure function of the seed."""
    dice, at_s, found = random.Random(seed), 5.0, []
    while True:
        at_s += dice.expovariate(1 / _EVERY_S)
        if at_s > seconds - 10.0:
            return found
        kind = dice.choices(list(_KINDS), _KINDS.values())[0]
        found.append((at_s, kind, dice.randrange(_RANKS)))


def effective_time(quick, seconds=_LONG_S):
    """Measures both, one after the other."""
    del quick
    faults = plan(seconds)
    own, ledger = under_drivetrain(faults, seconds)
    peer = under_torchrun(faults, seconds)
    return Row(
        figure=f"{own:.1%} ({ledger:.1%} by its own ledger), torchrun and DCP {peer:.1%}; "
        f"{len(faults)} faults in {seconds:.0f} s",
        holds=own >= 0.95,
        proven_on="cpu-gloo",
        details={"faults": faults},
    )


def under_drivetrain(faults, seconds):
    """Returns the share as the lines say, and as the job's ledger does."""
    options = ["--nproc-per-node", str(_RANKS), "--max-restarts", "1000"]
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder, "lines")
        program = [str(Path(__file__).resolve()), str(lines)]
        with LocalJob(folder, options=options, program=program) as job:
            job.start_node()
            job.wait_for_step(20, num_workers=_RANKS, timeout_s=120.0)
            before = job.status().time

            def pid_of(rank):
                found = [one.pid for one in job.members() if one.rank == rank]
                return found[0] if found else None

            began_s = play(faults, seconds, pid_of)
            after = job.status().time
            share = share_of(read(lines), began_s, seconds)
        effective_s = after.effective_s - before.effective_s
        return share, effective_s / (after.total_s - before.total_s)


def under_torchrun(faults, seconds):
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        PeerJob(sys.executable, folder) as job,
    ):
        script = job.script("torchrun_dcp", "--timeout-s", str(_TIMEOUT_S))
        job.start(
            "node0",
            *("-m", "torch.distributed.run", "--standalone", "--max-restarts", "1000"),
            *("--nproc-per-node", str(_RANKS)),
            *script,
            # With its default, a group cannot be made again after a worker was killed.
            env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        )
        job.wait_until_whole(_RANKS, 20, timeout_s=120.0)

        def pid_of(rank):
            now_s = time.monotonic()
            recent = [
                one
                for one in job.lines()
                if one["rank"] == rank and now_s - one["at_s"] < 5.0
            ]
            return recent[-1]["pid"] if recent else None

        began_s = play(faults, seconds, pid_of)
        return share_of(job.lines(), began_s, seconds)


def play(faults, seconds, pid_of):
    """Makes the faults; returns when that began. Who is not there is spared."""
    began_s = time.monotonic()
    for at_s, kind, rank in faults:
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        pid = pid_of(rank)
        if pid is not None:
            number = signal.SIGKILL if kind == "kill" else signal.SIGSTOP
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    time.sleep(max(0.0, began_s + seconds - time.monotonic()))
    return began_s


def read(folder):
    found = [
        json.loads(line)
        for path in folder.glob("*.jsonl")
        for line in path.read_text().splitlines()
        if line.endswith("}")
    ]
    return sorted(found, key=lambda line: line["at_s"])


def share_of(lines, began_s, seconds):
    """Returns steps that count x the usual time of one / time."""
    inside = [one for one in lines if began_s <= one["at_s"] <= began_s + seconds]
    before = max(one["step"] for one in lines if one["at_s"] < began_s)
    num_steps = max(one["step"] for one in inside) - before
    gaps = []
    for _, own in itertools.groupby(
        sorted(inside, key=lambda one: (one["pid"], one["at_s"])),
        key=lambda one: one["pid"],
    ):
        times = [one["at_s"] for one in own]
        gaps += [after - first for first, after in itertools.pairwise(times)]
    return num_steps * statistics.median(gaps) / seconds


def worker(folder):
    """The toy of the peers, in a loop that can lose ranks."""
    toy = Toy(Path(folder))
    loop = ElasticLoop(
        toy.model,
        toy.optimizer,
        schedule=Schedule(num_samples=1024, global_batch=_RANKS * 8),
        num_steps=10_000_000,
    )
    for step in loop:
        with step:
            for part in step.parts():
                (toy.loss(part.indices) * part.weight).backward()
        toy.step = loop.step
        toy.write(step.rank, step.world_size, step.epoch)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        worker(sys.argv[1])
    else:
        row = effective_time(False)
        print(row.figure, json.dumps(row.details))
