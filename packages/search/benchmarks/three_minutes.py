"""Plans that a search finds in three minutes, beside the best of all plans and the program.

Of each of twelve programs every plan of a small space runs in a process of its own; the
best few run again. A search of three minutes, with cold caches, then finds its plan. That,
the best of the sweep and the program as written run in turns, in sets of new processes,
until the interval of their ratios is narrow.

`three_minutes.py [--resume] [PROGRAM...]` keeps what it measures in `table/`, one file for
each kind of processor, and goes on from there with `--resume`. Without it, the programs
that are named are measured anew. A table is of one kind only.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from rivals import interval
from table_programs import TABLE, prepare

from drivetrain_core import accelerate
from drivetrain_core._choice import Choice
from drivetrain_core._compose import arrange, problems
from drivetrain_core._plan import Plan, describe
from drivetrain_core._registry import find
from drivetrain_testing import Row, surroundings

FOLDER = Path(__file__).parent / "table"
BUDGET_S = 180
# Sets of processes: at least, and at most while the interval is wider than this.
SETS, NARROW = (5, 60), 0.03
TURNS, STEPS, SECONDS = 3, 2, 0.7
PRELOADED = ["torch._inductor.compile_fx", "table_programs"]
# The best of a sweep were measured once, and the best of these was partly lucky. A plan
# that takes so many times as long as the program is measured by its second step; a choice
# that does alone is left out of other plans: none of the others gains as much.
AGAIN, SLOW, HOPELESS = 4, 3.0, 10.0
OF_BEST, MOST_BELOW, FIRST_PART = 0.95, 1, 1 / 3
NEAR_FINAL, PROMISE = 1.10, 0.03


def processor():
    """Returns the kind of processor that a table is of."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}"


def path_of_table():
    kind = "".join(c if c.isalnum() else "-" for c in processor()).strip("-").lower()
    return FOLDER / f"{kind}.json"


def program_of(name):
    return TABLE[name].make()


def plans_of(name):
    """Returns every plan of a program's space that can be used, the program first."""
    found = [()]
    for option, values in TABLE[name].values:
        choices = [Choice(option, find(option).normalize(value)) for value in values]
        found += [(*plan, choice) for plan in found for choice in choices]
    context = accelerated_of(program_of(name), []).context
    return [arrange(p) for p in found if not problems(arrange(p), context)]


def accelerated_of(program, strategy, **more):
    return accelerate(
        program.model,
        program.optimizer,
        program.data,
        program.loss,
        forward=program.forward,
        strategy=strategy,
        progress=False,
        **more,
    )


def serve(pipe, name, plan, limit_s):
    """Steps under a plan as often as it is asked, in a process of its own.

    One whose second step takes longer than a limit is not asked.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    prepare()
    torch.manual_seed(0)
    accelerated = accelerated_of(program_of(name), Plan(choices=choices_of(plan)))
    batches = iter(accelerated.batches())

    def step():
        begin = time.perf_counter()
        accelerated.train_step(next(batches))
        return time.perf_counter() - begin

    step()
    warm = [step()]
    while len(warm) < 2 and sum(warm) < 1.0:
        warm.append(step())
    pipe.send(warm[0])
    if warm[0] > limit_s:
        return
    while True:
        pipe.recv()
        times = []
        while len(times) < STEPS or sum(times) < SECONDS:
            times.append(step())
        pipe.send(times)


class Stepper:
    """A process that steps under a plan when it is asked."""

    def __init__(self, stack, start, name, plan, limit_s=math.inf):
        context = multiprocessing.get_context(start)
        self.pipe, theirs = context.Pipe()
        process = context.Process(
            target=serve, args=(theirs, name, plain(plan), limit_s)
        )
        process.start()
        theirs.close()
        stack.callback(process.join)
        stack.callback(process.kill)
        self.times = []
        try:
            self.warm_s = self.pipe.recv()
        except EOFError:
            self.warm_s = None

    def turn(self):
        self.pipe.send("go")
        self.times += self.pipe.recv()


def alone(name, plan, limit_s=math.inf):
    """Returns the median step of a plan in a process of its own; None if it fails.

    The process is forked from one that has imported torch: there are many.
    """
    with ExitStack() as stack:
        stepper = Stepper(stack, "forkserver", name, plan, limit_s)
        if stepper.warm_s is None or stepper.warm_s > limit_s:
            return stepper.warm_s
        for _ in range(2):
            stepper.turn()
        return statistics.median(stepper.times)


def sweep(name):
    """Measures every plan of a space, those with few choices first."""
    begin = time.monotonic()
    plans = sorted(plans_of(name), key=len)
    written_s = alone(name, ())
    found, hopeless = {describe(()): written_s}, set()
    for plan in plans[1:]:
        if not hopeless.isdisjoint(plan):
            continue
        step_s = found[describe(plan)] = alone(name, plan, SLOW * written_s)
        if len(plan) == 1 and step_s and step_s > HOPELESS * written_s:
            hopeless |= set(plan)
    ran = [plan for plan in plans if found.get(describe(plan))]
    best = sorted(ran, key=lambda plan: found[describe(plan)])[:AGAIN]
    again = {describe(plan): alone(name, plan) for plan in best}
    chosen = min(
        best,
        key=lambda plan: math.sqrt(
            found[describe(plan)] * (again[describe(plan)] or math.inf)
        ),
    )
    return {
        "plans": len(plans),
        "step_s": found,
        "again_s": again,
        "best": plain(chosen),
        "seconds": round(time.monotonic() - begin, 1),
    }


def plain(plan):
    return [[choice.name, dict(choice.config)] for choice in plan]


def choices_of(plan):
    return tuple(Choice(name, config) for name, config in plan)


def searched(name, seconds=BUDGET_S):
    """Searches in a process of its own, with cold caches."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--search", name, str(seconds)],
            env={
                **os.environ,
                "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
                "TRITON_CACHE_DIR": f"{folder}/triton",
            },
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(done.stdout.splitlines()[-1])


def search(name, budget_s):
    """Prints what a search finds, and when a plan nearly as fast was first measured."""
    torch.manual_seed(0)
    program = program_of(name)
    strategy = {option: list(values) for option, values in TABLE[name].values}
    begin = time.monotonic()
    accelerated = accelerated_of(program, strategy, budget=float(budget_s), cache=False)
    seconds, report = time.monotonic() - begin, accelerated.report
    chosen = next(t for t in report.trials if t.choices == report.chosen)
    near_s = NEAR_FINAL * chosen.measurement.quiet_step_time_s
    useful = next(
        t.started_s + t.seconds
        for t in report.trials
        if t.usable and t.measurement.quiet_step_time_s <= near_s
    )
    answer = {
        "plan": plain(report.chosen),
        "promised_s": accelerated.plan.measured["step_ms"] / 1e3,
        "promised": accelerated.plan.measured["vs_baseline"],
        "seconds": round(seconds, 1),
        "trials": len(report.trials),
        "baseline_part": round(report.baseline.seconds / float(budget_s), 3),
        "useful_part": round(useful / float(budget_s), 3),
        "stopped": report.stopped,
        "tried": [
            [
                describe(t.choices),
                t.measurement and round(1e3 * t.measurement.quiet_step_time_s, 3),
                round(t.seconds, 1),
                t.because,
            ]
            for t in report.trials
        ],
    }
    print(json.dumps(answer))


def one_set(name, plans):
    """Returns the median step of each plan, of processes that took turns."""
    with ExitStack() as stack:
        steppers = {k: Stepper(stack, "spawn", name, p) for k, p in plans.items()}
        for turn in range(TURNS):
            order = list(steppers.values())
            for stepper in order if turn % 2 == 0 else order[::-1]:
                stepper.turn()
        return {key: statistics.median(s.times) for key, s in steppers.items()}


def compare(name, found, keep):
    """Runs plan, best of the sweep and program in sets of processes, and keeps each set."""
    plans = plans_beside(found)
    different = {}
    for key, choices in plans.items():
        if choices not in different.values():
            different[key] = choices
    sets = found.setdefault("compared", {"step_s": []})["step_s"]
    while is_open(sets, plans):
        sets.append(one_set(name, different))
        keep()


def plans_beside(found):
    """Returns what runs beside each other, of a program's sweep and search."""
    plan, best = found["search"]["plan"], found["sweep"]["best"]
    return {"written": (), "plan": choices_of(plan), "best": choices_of(best)}


def is_open(sets, plans):
    """Returns whether more sets may make the interval narrow."""
    least, most = SETS
    return len(sets) < least or (len(sets) < most and widest(sets, plans) > NARROW)


def step_in(one, plans, key):
    """Returns a plan's step in a set, in which equal plans ran once."""
    return next(one[k] for k, p in plans.items() if p == plans[key] and k in one)


def ratio(sets, plans, key):
    """Returns how fast the plan is beside another, and the interval of 95%."""
    logs = [
        math.log(step_in(one, plans, key) / step_in(one, plans, "plan")) for one in sets
    ]
    if not any(logs):
        return 1.0, 0.0
    usual, (low, high) = interval(logs)
    return usual, (high / low) ** 0.5 - 1.0


def widest(sets, plans):
    return max(ratio(sets, plans, key)[1] for key in ("written", "best"))


def row_of(name, found):
    """Returns what a program's row says."""
    plans = plans_beside(found)
    plan, sets = plans["plan"], found["compared"]["step_s"]
    of_written, width = ratio(sets, plans, "written")
    of_best, width_of_best = ratio(sets, plans, "best")
    # In steps of the program as written beside it: machines drift in between. Where that
    # is the plan, nothing is promised.
    seen = [
        step_in(one, plans, "written") / step_in(one, plans, "plan") for one in sets
    ]
    spread = (max(seen) - min(seen)) / statistics.median(seen)
    off = abs(of_written / found["search"]["promised"] - 1.0) if plan else None
    step_s = statistics.median(step_in(one, plans, "plan") for one in sets)
    wide = max(width, width_of_best) > NARROW
    return {
        "plan": describe(plan),
        "best": describe(plans["best"]),
        "of_best": round(of_best, 3),
        "of_written": round(of_written, 3),
        "half_width": round(max(width, width_of_best), 4),
        "holds": not wide and of_best >= OF_BEST and of_written >= 1.0 - width,
        "off_promise": None if off is None else round(off, 4),
        "drift": round(step_s / found["search"]["promised_s"], 4),
        "spread": round(spread, 4),
        "useful_part": found["search"]["useful_part"],
        "baseline_part": found["search"]["baseline_part"],
        "trials": found["search"]["trials"],
        "plans": found["sweep"]["plans"],
        "sweep_s": found["sweep"]["seconds"],
    }


def measure_all(names, *, resume):
    """Measures programs; what is there of an earlier run stays if it shall."""
    path = path_of_table()
    table = json.loads(path.read_text()) if path.exists() else {"programs": {}}
    table |= {"processor": processor(), **surroundings()}
    records = table["programs"]

    def keep():
        FOLDER.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(table, indent=1) + "\n")
        part.rename(path)

    for name in names:
        if not resume:
            records.pop(name, None)
        mine = records.setdefault(name, {})
        for key, measure in (("sweep", sweep), ("search", searched)):
            if key not in mine:
                mine[key] = measure(name)
                keep()
        compare(name, mine, keep)
        sys.stderr.write(f"{name}: {json.dumps(row_of(name, mine))}\n")
    return rows(table)


def rows(table):
    records = table["programs"]
    return {
        name: row_of(name, found)
        for name, found in records.items()
        if "compared" in found
        and not is_open(found["compared"]["step_s"], plans_beside(found))
    }


def recorded():
    """Returns the rows that are recorded of this kind of processor."""
    path = path_of_table()
    return rows(json.loads(path.read_text())) if path.exists() else {}


def measure(quick):
    """The plans beside the best of their spaces and the programs as written."""
    del quick
    found = recorded()
    left = [name for name in TABLE if name not in found]
    if left:
        figure = f"{len(found)} of {len(TABLE)} programs are recorded of {processor()}"
        return Row(figure=figure, holds=None, details=found)
    missed = [name for name, row in found.items() if not row["holds"]]
    usual = statistics.median(row["of_best"] for row in found.values())
    return Row(
        figure=f"{usual:.3f} of the best in the median; missed: {missed or 'none'}",
        holds=len(missed) <= MOST_BELOW,
        details=found,
    )


def measure_useful(quick):
    """When the first plan within a tenth of the final one was measured."""
    del quick
    found = recorded()
    if not found:
        return Row(figure="no table of this processor", holds=None)
    usual = statistics.median(row["useful_part"] for row in found.values())
    return Row(
        figure=f"{usual:.0%} of the budget in the median of {len(found)} programs",
        holds=usual <= FIRST_PART,
    )


def measure_promise(quick):
    """By how much the speed-up that a plan promises differs from what training shows."""
    del quick
    found = [row for row in recorded().values() if row["off_promise"] is not None]
    if not found:
        return Row(figure="no plan is recorded of this processor", holds=None)
    over = [row["off_promise"] / max(PROMISE, row["spread"] / 2) for row in found]
    usual = statistics.median(row["off_promise"] for row in found)
    return Row(
        figure=f"{usual:.1%} off in the median of {len(found)} programs; "
        f"{statistics.median(over):.2f} of what is allowed",
        holds=statistics.median(over) <= 1.0,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="PROGRAM")
    parser.add_argument("--resume", action="store_true", help="keep what is recorded")
    arguments = parser.parse_args()
    found = measure_all(arguments.names or list(TABLE), resume=arguments.resume)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    prepare()
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    if sys.argv[1:2] == ["--search"]:
        search(*sys.argv[2:])
    else:
        sys.exit(main())
