"""The guarantee of `select`, on many models: never slower than eager, near the best."""

from __future__ import annotations

import functools
import math
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from unittest import mock

import models
import torch

from drivetrain_kernels import select
from drivetrain_kernels.selector._install import install
from drivetrain_kernels.selector._workload import Workload
from drivetrain_testing import Row

BUDGET_S, QUICK_BUDGET_S = 90.0, 10.0
ROUNDS = 25
SAMPLE_S = 0.04


@dataclass(frozen=True, kw_only=True)
class Result:
    """One model: what was chosen, and what every candidate takes of eager's time."""

    model: str
    choice: str
    seconds: float
    committed: float
    plain_compile: float
    best: str
    best_ratio: float
    ratios: dict[str, float]
    error: str = ""


def sample(workload, call, repeats):
    started = time.perf_counter()
    for _ in range(repeats):
        for batch in workload.batches:
            workload.run(call, batch)
    return time.perf_counter() - started


def paired(workload, eager, others):
    """Returns by name the median ratio to eager, sampled in turns."""
    runs = {"eager": eager, **others}
    for call in runs.values():
        sample(workload, call, 2)
    repeats = max(1, math.ceil(SAMPLE_S / (sample(workload, eager, 2) / 2)))
    ratios = {name: [] for name in others}
    names = list(runs)
    for number in range(ROUNDS):
        # What runs behind another finds the caches as that one left them.
        order = random.Random(number).sample(names, len(names))
        took = {name: sample(workload, runs[name], repeats) for name in order}
        for name in others:
            ratios[name].append(took[name] / took["eager"])
    return {name: statistics.median(found) for name, found in ratios.items()}


def exhaustive(name, selected):
    """Measures what was committed, every candidate, and plain torch.compile."""
    eager, batches = models.make(name)
    eager.load_state_dict(selected.call.state_dict())
    workload = Workload(eager, batches)
    calls = {"committed": selected.call}
    for trial in selected.trials[1:]:
        # What the budget had no time for counts among the candidates.
        if trial.status == "ok" or "compiling takes" in trial.why:
            model, _ = models.make(name)
            install(model, trial.name)
            calls[trial.name] = model
    plain, _ = models.make(name)
    # Not `plain.compile()`, which compiles nothing of an `nn.Sequential`.
    calls["torch.compile"] = plain = torch.compile(plain)
    for call in list(calls.values()):
        # Gradients are cleared on the leaves of all models alike.
        workload.leaves.extend(p for p in call.parameters() if p.requires_grad)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            sample(workload, plain, 2)
        except Exception as error:  # noqa: BLE001
            # The peer may fail where the selector has to go on.
            del calls["torch.compile"]
            print(f"  torch.compile fails: {type(error).__name__}", file=sys.stderr)
        return paired(workload, eager, calls)


def measure_one(name, budget_s):
    torch.manual_seed(0)
    model, batches = models.make(name)
    started = time.perf_counter()
    try:
        selected = select(model, batches, budget_s=budget_s, cache=False)
        seconds = time.perf_counter() - started
        print(f"{name}\n{selected}", file=sys.stderr, flush=True)
        ratios = exhaustive(name, selected)
    except Exception as error:  # noqa: BLE001
        # One model that fails is what a bar counts.
        return Result(
            model=name,
            choice="",
            seconds=0.0,
            committed=math.inf,
            plain_compile=math.inf,
            best="",
            best_ratio=1.0,
            ratios={},
            error=f"{type(error).__name__}: {error}",
        )
    # Of eager beside itself the ratio is one by definition; the rest is noise.
    untouched = selected.choice == "eager" and selected.call is model
    committed = 1.0 if untouched else ratios["committed"]
    own = {
        "eager": 1.0,
        **{t.name: ratios[t.name] for t in selected.trials if t.name in ratios},
    }
    best = min(own, key=own.get)
    result = Result(
        model=name,
        choice=selected.choice,
        seconds=seconds,
        committed=committed,
        plain_compile=ratios.get("torch.compile", math.inf),
        best=best,
        best_ratio=own[best],
        ratios=ratios,
    )
    print(f"  {result}", file=sys.stderr, flush=True)
    return result


@functools.cache
def results(quick):
    names = models.QUICK[:1] if quick else tuple(models.MODELS)
    budget_s = QUICK_BUDGET_S if quick else BUDGET_S
    with tempfile.TemporaryDirectory() as folder:
        # As on a machine that has compiled nothing yet.
        empty = {
            "DRIVETRAIN_CACHE_DIR": folder,
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        }
        with mock.patch.dict(os.environ, empty):
            return [measure_one(name, budget_s) for name in names]


def rows_of(found):
    return {"models": [asdict(one) for one in found]}


def finishes(quick):
    found = results(quick)
    failed = [f"{one.model}: {one.error}" for one in found if one.error]
    figure = f"{len(found) - len(failed)} of {len(found)} models"
    return Row(
        figure="; ".join([figure, *failed]), holds=not failed, details=rows_of(found)
    )


def never_slower(quick):
    worst = max(results(quick), key=lambda one: one.committed)
    figure = f"{worst.committed:.3f} x eager at most ({worst.model}, {worst.choice})"
    return Row(figure=figure, holds=worst.committed <= 1.02)


def near_best(quick):
    def over(one):
        # Both from the exhaustive measurement: two copies differ by noise alone.
        return one.ratios.get(one.choice, 1.0) / one.best_ratio

    worst = max(results(quick), key=over)
    figure = (
        f"{over(worst):.3f} x the best at most ({worst.model}: {worst.choice}, best "
        f"{worst.best})"
    )
    return Row(figure=figure, holds=over(worst) <= 1.02)


def mean_speed(quick):
    found = results(quick)
    ours = math.exp(statistics.fmean(-math.log(one.committed) for one in found))
    # Where it fails, a user of torch.compile goes on in eager.
    peers = [min(one.plain_compile, 1e9) for one in found]
    peers = [1.0 if ratio > 1e8 else ratio for ratio in peers]
    peer = math.exp(statistics.fmean(-math.log(ratio) for ratio in peers))
    figure = f"{ours:.3f} x eager's speed, torch.compile {peer:.3f} x"
    return Row(figure=figure, holds=ours >= 0.98 * peer)


def in_budget(quick):
    slowest = max(results(quick), key=lambda one: one.seconds)
    mean = statistics.fmean(one.seconds for one in results(quick))
    figure = (
        f"{slowest.seconds:.0f} s at most ({slowest.model}), {mean:.0f} s on average"
    )
    return Row(figure=figure, holds=slowest.seconds <= BUDGET_S)


TABLE = [
    ("select-finishes", "every model", finishes),
    ("select-never-slower", "<= 1.02 x eager", never_slower),
    ("select-near-best", "<= 1.02 x the best candidate", near_best),
    ("select-mean-speed", ">= 0.98 x torch.compile's", mean_speed),
    ("select-budget", f"<= {BUDGET_S:.0f} s a model", in_budget),
]

if __name__ == "__main__":
    from drivetrain_testing import Bar, run_bars

    bars = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]
    sys.exit(run_bars(bars, description=__doc__))
