"""Ten programs under the searched plan, and under Accelerate and Fabric.

Every contender runs in a process of its own and takes turns with the others, so that a
slow minute of the machine hits all. Accelerate and Fabric run with their defaults, and with
each of what their users set by hand: bf16, `torch.compile`, and both. Two processes of one
program differ by several percent, so the plan, the program as written and the fastest rival
are measured again in more sets of processes; that rival's own figure comes from those alone,
since the fastest of eight was partly lucky.

`rivals.py FOLDER [MODEL...]` keeps the plans and what was measured, and goes on from there;
`rivals.py one MODEL CONTENDER` is one of the processes.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from zoo import ZOO

from drivetrain_core import accelerate
from drivetrain_core._plan import Plan
from drivetrain_core._program import default_forward, default_loss
from drivetrain_testing import Row

TURNS, STEPS, SECONDS = 5, 4, 1.0
# Sets of processes: so many, and up to the second while a plan may be slower.
SETS = (3, 8)
# Student's t for an interval of 95%, by the number of sets.
STUDENT = dict(
    zip(
        range(2, 21),
        (
            *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
            *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093),
        ),
        strict=True,
    )
)
BUDGET = {"seconds": 300, "trials": 24}
NOT_SLOWER, AIM = 0.98, 1.1
SETTINGS = ("fp32", "bf16", "compile", "bf16-compile")
RIVALS = [
    f"{name}-{setting}" for name in ("accelerate", "fabric") for setting in SETTINGS
]


def step_of_plan(program, path):
    strategy = Plan.load(path) if path else []
    accelerated = accelerate(
        program.model,
        program.optimizer,
        program.data,
        program.loss,
        forward=program.forward,
        strategy=strategy,
        progress=False,
    )
    batches = iter(accelerated.batches())
    return lambda: accelerated.train_step(next(batches))


def parts(program):
    model = program.build_model()
    return model, program.optimizer(model.parameters())


def forever(loader):
    while True:
        yield from loader


def written(program, model, optimizer, batches, backward, context):
    forward = program.forward or default_forward
    loss_of = program.loss or default_loss

    def step():
        batch = next(batches)
        with context():
            loss = loss_of(forward(model, batch), batch)
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


def step_of_accelerate(program, setting):
    from accelerate import Accelerator

    model, optimizer = parts(program)
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="bf16" if "bf16" in setting else "no",
        dynamo_backend="inductor" if "compile" in setting else "no",
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, program.data)
    return written(
        program,
        model,
        optimizer,
        iter(forever(loader)),
        accelerator.backward,
        accelerator.autocast,
    )


def step_of_fabric(program, setting):
    from contextlib import nullcontext

    from lightning.fabric import Fabric

    model, optimizer = parts(program)
    precision = "bf16-mixed" if "bf16" in setting else "32-true"
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    if "compile" in setting:
        model = torch.compile(model)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(program.data)
    return written(
        program, model, optimizer, iter(forever(loader)), fabric.backward, nullcontext
    )


def one(name, contender, path=""):
    """Serves one contender: a line of seconds for every line that asks."""
    torch.manual_seed(0)
    program = ZOO[name]()
    library, _, setting = contender.partition("-")
    if library == "accelerate":
        step = step_of_accelerate(program, setting)
    elif library == "fabric":
        step = step_of_fabric(program, setting)
    else:
        step = step_of_plan(program, path)
    for _ in range(3):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        times = []
        while len(times) < STEPS or sum(times) < SECONDS:
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
        print(json.dumps(times), flush=True)


class Contender:
    """A process that steps when asked."""

    def __init__(self, stack, name, contender, path=""):
        command = [sys.executable, __file__, "one", name, contender, path]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        stack.callback(self.process.kill)
        self.times = []
        self.works = self._line() == "ready"

    def _line(self):
        for line in self.process.stdout:
            if line.startswith(("ready", "[")):
                return line.strip()
        return ""

    def turn(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.times += json.loads(self._line())


def in_turns(name, contenders):
    """Median seconds of a step of each contender that runs."""
    with ExitStack() as stack:
        running = {
            contender: Contender(stack, name, contender, path)
            for contender, path in contenders.items()
        }
        alive = {key: each for key, each in running.items() if each.works}
        for turn in range(TURNS):
            order = list(alive.values())
            for contender in order if turn % 2 == 0 else order[::-1]:
                contender.turn()
        return {key: statistics.median(each.times) for key, each in alive.items()}


def searched(name, path):
    """The search of one model, whose plan goes to `path`."""
    program = ZOO[name]()
    begin = time.monotonic()
    accelerated = accelerate(
        program.model,
        program.optimizer,
        program.data,
        program.loss,
        forward=program.forward,
        budget=BUDGET,
        plan_out=path,
        progress=False,
        cache=False,
    )
    return {
        "plan": str(accelerated.plan),
        "promised": accelerated.plan.measured["vs_baseline"],
        "trials": len(accelerated.report.trials),
        "out_of_memory": sum(t.code == "MEMORY" for t in accelerated.report.trials),
        "search_s": round(time.monotonic() - begin, 1),
    }


def interval(logs):
    """Mean of `logs` and an interval of 95%, as ratios."""
    usual = statistics.mean(logs)
    student = STUDENT.get(len(logs), 2.1)
    reach = student * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(usual), [math.exp(usual - reach), math.exp(usual + reach)]


def compared(name, path):
    """How a model's plan fares beside the program and the rivals."""
    pair = {"written": "", "plan": str(path)}
    first = in_turns(name, pair | dict.fromkeys(RIVALS, ""))
    best = min((key for key in first if key in RIVALS), key=first.get)
    again = pair | {best: ""}
    sets = [first]
    while len(sets) < SETS[1]:
        of_written = [math.log(each["written"] / each["plan"]) for each in sets]
        if len(sets) >= SETS[0] and statistics.mean(of_written) >= math.log(NOT_SLOWER):
            break
        sets.append(in_turns(name, again))
    of_written = [math.log(each["written"] / each["plan"]) for each in sets]
    of_best = [math.log(each[best] / each["plan"]) for each in sets[1:]]
    usual, reach = interval(of_written)
    return {
        "of_written": usual,
        "interval": reach,
        "of_accelerate": first["accelerate-fp32"] / first["plan"],
        "of_fabric": first["fabric-fp32"] / first["plan"],
        "their_best": best,
        "of_their_best": math.exp(statistics.mean(of_best)),
        "step_ms": [{k: round(1e3 * v, 3) for k, v in each.items()} for each in sets],
    }


def mean(values):
    return math.exp(statistics.mean(map(math.log, values)))


def measure_all(names, folder):
    """Compares each model; what `folder` holds of an earlier run stays."""
    kept = Path(folder) / "measured.json"
    found = json.loads(kept.read_text()) if kept.exists() else {}
    for name in names:
        plan = Path(folder) / f"{name}.yaml"
        for key, part in (("search", searched), ("compared", compared)):
            if key not in found.setdefault(name, {}):
                found[name][key] = part(name, plan)
                sys.stderr.write(f"{name} {json.dumps(found[name][key])}\n")
                kept.write_text(json.dumps(found, indent=1))
    return {name: found[name]["search"] | found[name]["compared"] for name in names}


@functools.cache
def all_compared():
    """All ten programs, once for every bar that asks."""
    with tempfile.TemporaryDirectory() as folder:
        return measure_all(ZOO, folder)


def measure(quick):
    """No model gets slower; and how much faster than the rivals' best they get."""
    if quick:
        return Row(figure="takes longer than the quick form", holds=None)
    found = all_compared()
    slower = [n for n, each in found.items() if each["of_written"] < NOT_SLOWER]
    figures = {
        key: mean([each[key] for each in found.values()])
        for key in ("of_written", "of_accelerate", "of_fabric", "of_their_best")
    }
    return Row(
        figure=f"{len(slower)} of {len(found)} slower; geometric means: "
        f"{figures['of_written']:.2f}x the program as written, "
        f"{figures['of_accelerate']:.2f}x Accelerate's defaults, "
        f"{figures['of_fabric']:.2f}x Fabric's, "
        f"{figures['of_their_best']:.2f}x the best of what is set by hand in either",
        holds=not slower and figures["of_their_best"] >= AIM,
        details=found,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(*sys.argv[2:])
    else:
        print(json.dumps(measure_all(sys.argv[2:] or list(ZOO), sys.argv[1]), indent=1))
