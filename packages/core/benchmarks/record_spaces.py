"""Records every plan of a reference space: `record_spaces.py NAME... [--lock FILE]`.

Each plan runs in a process of its own, forked from one that has imported torch and
Inductor but computed nothing. Before and after it the program as written takes some
steps in another: by these a reader corrects for the speed of the machine. The records
lie in `spaces/NAME.json`; a run that was broken off goes on where it stopped.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import socket
import statistics
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import torch
import torch._inductor.compile_fx  # Not in each child.
from reference_spaces import SPACES

from drivetrain_core import _meters
from drivetrain_core._build import build
from drivetrain_core._cycle import cycle
from drivetrain_core._optimizer_source import OptimizerSource
from drivetrain_core._plan import Plan, describe
from drivetrain_core.testing import surroundings

FOLDER = Path(__file__).parent / "spaces"
WARM, BOUTS, STEPS, SECONDS = 3, 5, 4, 0.2
BATCH = 25
# The best plans of a single run are the lucky ones: these are measured again.
BEST, TIMES = 60, 2


def built(space, context, plan, threads):
    """Returns one plan's program, and its batches, in this process."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    program = space.program
    model = program.build_model()
    source = OptimizerSource.of(program.optimizer, model)
    cpu = torch.device("cpu")
    accelerated = build(program, model, source, Plan(choices=plan), context, cpu)
    return accelerated, iter(cycle(accelerated.loader))


class Anchor:
    """The program as written, in a process that steps when asked."""

    def __init__(self, space, context, threads):
        ours, theirs = socket.socketpair()
        self.child = os.fork()
        if self.child == 0:
            ours.close()
            accelerated, batches = built(space, context, (), threads)
            with theirs, theirs.makefile("rw") as line:
                while line.readline():
                    found = _meters.measure_steps(
                        accelerated, batches, min_steps=3, min_seconds=0.1
                    )
                    line.write(f"{found.quiet_step_time_s}\n")
                    line.flush()
            os._exit(0)
        theirs.close()
        self.line = ours.makefile("rw")
        ours.close()

    def step_s(self):
        self.line.write("go\n")
        self.line.flush()
        return float(self.line.readline())

    def close(self):
        self.line.close()
        os.waitpid(self.child, 0)


def measured(space, context, plan, threads, start, anchor):
    """Builds and measures one plan, in this process."""
    accelerated, batches = built(space, context, plan, threads)
    warm = []
    for _ in range(WARM):
        begin = time.perf_counter()
        accelerated.train_step(next(batches))
        warm.append(round(time.perf_counter() - begin, 5))
    setup = time.monotonic() - start
    bouts, before = [], anchor.step_s()
    for _ in range(BOUTS):
        found = _meters.measure_steps(
            accelerated, batches, min_steps=STEPS, min_seconds=SECONDS
        )
        after = anchor.step_s()
        bouts.append(
            {
                "anchor_s": [round(before, 6), round(after, 6)],
                "steps_s": [round(t, 6) for t in found.step_times_s],
            }
        )
        before = after
    return {
        "setup_s": round(setup, 3),
        "warm_s": warm,
        "runs": [bouts],
        "peak_mib": found.peak_memory_bytes >> 20,
        "data_share": round(found.data_share, 4),
        "optimizer_share": round(found.optimizer_share, 4),
    }


def in_child(space, context, plan, threads, anchor):
    read, write = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            answer = measured(space, context, plan, threads, start, anchor)
        except Exception as error:  # noqa: BLE001
            # A plan that fails is part of the record.
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        with os.fdopen(write, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    answer = json.loads(text) if text else {"error": "the process died"}
    return answer | {"seconds": round(time.monotonic() - start, 3)}


@contextmanager
def alone(lock):
    """Keeps others off the machine while a plan is measured."""
    if lock is None:
        yield
        return
    with Path(lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.2)  # Others get their turn.


def record(name, lock):
    space = SPACES[name]()
    threads = len(os.sched_getaffinity(0))
    path = FOLDER / f"{name}.json"
    whole = json.loads(path.read_text()) if path.exists() else {"plans": {}}
    whole |= {"about": space.about, "threads": threads, **surroundings()}
    context = space.context()
    plans = space.plans(context)
    # In a random order, so that a slow quarter of an hour does not hit one corner.
    order = plans[1:]
    random.Random(0).shuffle(order)
    anchor = Anchor(space, context, threads)
    anchor.step_s()
    rest = [p for p in [plans[0], *order] if describe(p) not in whole["plans"]]
    while rest:
        batch, rest = rest[:BATCH], rest[BATCH:]
        with alone(lock):
            for plan in batch:
                found = in_child(space, context, plan, threads, anchor)
                whole["plans"][describe(plan)] = found
                speed = found.get("error") or f"{step_of(found):.3f} of the anchor's"
                sys.stderr.write(f"{speed} {found['seconds']} s {describe(plan)}\n")
        path.write_text(json.dumps(whole, indent=0))
        sys.stderr.write(f"{name}: {len(whole['plans'])} of {len(plans)}\n")
    for time_ in range(TIMES):
        repeat(space, context, plans, whole["plans"], threads, lock, time_, anchor)
        path.write_text(json.dumps(whole, indent=0))
    anchor.close()


def step_of(found):
    """Returns a plan's step in parts of the anchor's; of the median run and bout."""
    if "runs" not in found:
        return float("inf")
    return statistics.median(
        statistics.median(
            statistics.median(bout["steps_s"]) / statistics.mean(bout["anchor_s"])
            for bout in run
        )
        for run in found["runs"]
    )


def repeat(space, context, plans, records, threads, lock, time_, anchor):
    """Measures the best plans, and the baseline, once more."""

    best = sorted(plans[1:], key=lambda p: step_of(records[describe(p)]))[:BEST]
    best = [p for p in [plans[0], *best] if "runs" in records[describe(p)]]
    left = [p for p in best if len(records[describe(p)]["runs"]) <= time_ + 1]
    while left:
        batch, left = left[:BATCH], left[BATCH:]
        with alone(lock):
            for plan in batch:
                found = in_child(space, context, plan, threads, anchor)
                records[describe(plan)]["runs"] += found.get("runs", [])
        sys.stderr.write(f"{time_ + 1}. repeat: {len(left)} left\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", default=list(SPACES), metavar="NAME")
    parser.add_argument("--lock", help="a file to lock around each plan")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for name in arguments.names:
        record(name, arguments.lock)


if __name__ == "__main__":
    main()
