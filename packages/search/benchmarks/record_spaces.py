"""Records every plan of a reference space: `record_spaces.py NAME...`, on a machine at rest.

Each plan runs in a process of its own, forked from one that has imported torch and
Inductor but computed nothing. Between its bouts of steps the program as written takes some
in another process: by these a reader corrects for the speed of the machine. The best plans
then run again, several times, each time in a new process, since two processes of one plan
differ by some percent as long as they live. Never are more than these two alive, as in a
search. The records lie in
`spaces/NAME.json`, one plan a line; a run that was broken off goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import sys
import time
from pathlib import Path

import torch
import torch._inductor.compile_fx  # Not in each child.
from reference_spaces import SPACES

from drivetrain_core._build import build
from drivetrain_core._data.cycle import cycle
from drivetrain_core._optimizer.source import OptimizerSource
from drivetrain_core._plan import Plan, describe
from drivetrain_search.process import meters
from drivetrain_testing import surroundings

FOLDER = Path(__file__).parent / "spaces"
WARM, BOUTS, STEPS, SECONDS = 3, 3, 4, 0.2
# Bouts are taken again, so many of a run, if the anchor's times around them differ more.
SPARE, STEADY = 4, 1.05
# The best plans of one run each are the lucky ones: so many run again, so many times, in
# an order drawn anew each time, since the machine changes from minute to minute, and some
# plans suffer more from it than others.
BEST, SETS, BOUTS_AGAIN = 24, 8, 2
# Those that come next run again too, less often: one unlucky run of a good plan would
# mislead every search alike.
NEXT, NEXT_SETS = 48, 3
# Of a small space, fewer: this part of it are its best.
BEST_PART = 8
KEEP_EVERY = 20


class Stepper:
    """A plan in a process of its own, which takes a bout of steps when it is asked."""

    def __init__(self, space, context, plan, threads):
        start = time.monotonic()
        ours, theirs = socket.socketpair()
        self.child = os.fork()
        if self.child == 0:
            ours.close()
            serve(space, context, plan, threads, start, theirs.makefile("rw"))
            os._exit(0)
        theirs.close()
        self.line = ours.makefile("rw")
        ours.close()
        self.about = self.answer()

    def answer(self):
        text = self.line.readline()
        return json.loads(text) if text else {"error": "the process died"}

    def bout(self, steps=STEPS, seconds=SECONDS):
        self.line.write(json.dumps([steps, seconds]) + "\n")
        self.line.flush()
        return self.answer()

    def quiet_s(self):
        return self.bout(3, 0.1)["quiet_s"]

    def close(self):
        # A later process holds this socket too, and so it must be told.
        self.line.write("null\n")
        self.line.close()
        os.waitpid(self.child, 0)


def serve(space, context, plan, threads, start, line):
    """Builds a plan and tells how that went; then takes steps as long as it is asked."""

    def tell(answer):
        line.write(json.dumps(answer) + "\n")
        line.flush()

    try:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        program = space.program
        model = program.build_model()
        source = OptimizerSource.of(program.optimizer, model)
        cpu = torch.device("cpu")
        accelerated = build(program, model, source, Plan(choices=plan), context, cpu)
        batches = iter(cycle(accelerated.loader))
        for _ in range(WARM):
            accelerated.train_step(next(batches))
    except Exception as error:  # noqa: BLE001
        # A plan that fails is part of the record.
        tell({"error": f"{type(error).__name__}: {error}"[:300]})
        return
    tell({"setup_s": round(time.monotonic() - start, 3)})
    while asked := json.loads(line.readline() or "null"):
        steps, seconds = asked
        found = meters.measure_steps(
            accelerated, batches, min_steps=steps, min_seconds=seconds
        )
        tell(
            {
                "steps_s": [round(t, 6) for t in found.step_times_s],
                "quiet_s": found.quiet_step_time_s,
                "peak_mib": found.peak_memory_bytes >> 20,
                "data_share": round(found.data_share, 4),
                "optimizer_share": round(found.optimizer_share, 4),
            }
        )


def measured(space, context, plan, threads, anchor, bouts=BOUTS):
    """Returns one plan's record, of a run of its own."""
    start = time.monotonic()
    stepper = Stepper(space, context, plan, threads)
    found = dict(stepper.about)
    if "error" not in found:
        run, before, spare = [], anchor.quiet_s(), SPARE
        while len(run) < bouts:
            answer = stepper.bout()
            after = anchor.quiet_s()
            # A machine that changed its speed in between says nothing of the plan's.
            if spare and max(before, after) > STEADY * min(before, after):
                spare -= 1
            else:
                run.append(beside(answer, before, after))
            before = after
        kept = ("peak_mib", "data_share", "optimizer_share")
        found |= {name: answer[name] for name in kept} | {"runs": [run]}
    stepper.close()
    return found | {"seconds": round(time.monotonic() - start, 3)}


def beside(answer, before, after):
    anchor_s = [round(before, 6), round(after, 6)]
    return {"anchor_s": anchor_s, "steps_s": answer["steps_s"]}


def step_of(found):
    """Returns a plan's step in parts of the anchor's, of its first run."""
    if "runs" not in found:
        return float("inf")
    return statistics.median(
        statistics.median(bout["steps_s"]) / min(bout["anchor_s"])
        for bout in found["runs"][0]
    )


def record(name):
    space = SPACES[name]()
    threads = len(os.sched_getaffinity(0))
    path = FOLDER / f"{name}.json"
    whole = json.loads(path.read_text()) if path.exists() else {"plans": {}}
    whole |= {"about": space.about, "threads": threads, **surroundings()}
    records = whole["plans"]
    context = space.context()
    plans = space.plans(context)
    # In a random order, so that a slow quarter of an hour does not hit one corner.
    order = plans[1:]
    random.Random(0).shuffle(order)
    anchor = Stepper(space, context, (), threads)
    rest = [p for p in [plans[0], *order] if describe(p) not in records]
    for number, plan in enumerate(rest):
        found = measured(space, context, plan, threads, anchor)
        records[describe(plan)] = found
        speed = found.get("error") or f"{step_of(found):.3f} of the anchor's"
        left = len(rest) - number - 1
        print(f"{left} left: {speed} {found['seconds']} s {describe(plan)}", flush=True)
        if left % KEEP_EVERY == 0:
            keep(whole, path)
    best = sorted(plans[1:], key=lambda plan: step_of(records[describe(plan)]))
    part = min(1.0, len(plans) / BEST_PART / BEST)
    for number in range(1, SETS + 1):
        most = BEST + (NEXT if number <= NEXT_SETS else 0)
        again = [plans[0], *best[: round(part * most)]]
        random.Random(number).shuffle(again)
        for plan in again:
            mine = records[describe(plan)]
            if len(mine.get("runs", [])) != number:
                continue
            found = measured(space, context, plan, threads, anchor, BOUTS_AGAIN)
            if "error" in found:
                # A plan that fails at times is one that fails.
                records[describe(plan)] = found
            else:
                mine["runs"] += found["runs"]
        keep(whole, path)
        print(f"{name}: run {number} of {SETS} of the best", flush=True)
    anchor.close()


def keep(whole, path):
    """Writes a record with one plan a line."""
    head = {name: value for name, value in whole.items() if name != "plans"}
    lines = [f"{json.dumps(p)}: {json.dumps(f)}" for p, f in whole["plans"].items()]
    plans = ",\n".join(lines)
    text = f'{json.dumps(head)[:-1]}, "plans": {{\n{plans}\n}}}}\n'
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", default=list(SPACES), metavar="NAME")
    FOLDER.mkdir(exist_ok=True)
    for name in parser.parse_args().names:
        record(name)


if __name__ == "__main__":
    sys.exit(main())
