"""The main job: searches a plan for the byte-level language model, and proves it.

Run it as `python -m drivetrain_core.examples.quickstart`. It searches, prints the plan
and its reasons, trains the program as written and the program under the plan for the
same number of steps on the same batches, and ends with a table.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table

from drivetrain_core import _meters
from drivetrain_core._accelerate import accelerate
from drivetrain_core._explain import explain_plan
from drivetrain_core._plan import Plan
from drivetrain_core.examples import byte_lm
from drivetrain_core.search.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_core._accelerated import Accelerated

__all__ = [
    "ALLOW",
    "Job",
    "Run",
    "main",
]

ALLOW = ("precision", "compile", "optimizer_impl", "micro_batch")
"""The slots that the quickstart searches: small enough to sweep them all."""

_MIB = 1 << 20
_TURN_STEPS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """The size of the run.

    Args:
        batch_size: Windows of a global batch.
        length: Bytes of a window.
        steps: Training steps of each of the two runs.
        budget: Limits of the search.
        max_bytes: Text to read at most; all when None.
        config: The model.
    """

    batch_size: int
    length: int
    steps: int
    budget: Budget
    max_bytes: int | None = None
    config: byte_lm.ByteLMConfig | None = None

    @classmethod
    def here(cls) -> Job:
        """Returns the size for this machine: small on a CPU, larger with a device."""
        budget = Budget(seconds=180.0, trials=12)
        if torch.accelerator.is_available():
            return cls(batch_size=64, length=512, steps=400, budget=budget)
        return cls(batch_size=8, length=128, steps=120, budget=budget)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One of the two training runs."""

    accelerated: Accelerated
    batches: Any
    times_s: list[float]
    peak_bytes: list[int]

    def train(self, steps: int) -> None:
        """Trains, and keeps the time of each step."""
        measured = _meters.measure_steps(
            self.accelerated,
            self.batches,
            min_steps=steps,
            min_seconds=0.0,
            max_steps=steps,
        )
        self.times_s.extend(measured.step_times_s)
        self.peak_bytes.append(measured.peak_memory_bytes)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job; returns 0 when the plan is not slower than the program as written."""
    parser = argparse.ArgumentParser(
        prog="drivetrain_core.examples.quickstart",
        description=(__doc__ or "").split("\n", 1)[0],
        allow_abbrev=False,
    )
    parser.add_argument("--out", default="quickstart", help="folder of the results")
    parser.add_argument("--seconds", type=float, help="budget of the search")
    parser.add_argument("--steps", type=int, help="training steps of each run")
    arguments = parser.parse_args(argv)
    job = Job.here()
    if arguments.seconds is not None:
        budget = replace(job.budget, seconds=arguments.seconds)
        job = replace(job, budget=budget)
    if arguments.steps is not None:
        job = replace(job, steps=arguments.steps)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    return _run(job, out, console)


def _run(job: Job, out: Path, console: Console) -> int:
    began = time.perf_counter()
    train, held_out = byte_lm.read_standard_library(job.max_bytes)
    console.print(
        f"text: {len(train) / 1e6:.1f} MB of the standard library to train on, "
        f"{len(held_out) / 1e6:.2f} MB held out"
    )
    data = byte_lm.loader(train, batch_size=job.batch_size, length=job.length)
    model = partial(byte_lm.ByteLM, job.config)
    planned = accelerate(
        model,
        _adamw,
        data,
        byte_lm.loss,
        budget=job.budget,
        allow=ALLOW,
        plan_out=out / "plan.yaml",
    )
    assert planned.report is not None
    console.print(planned.report.table())
    explain_plan(planned.plan, console)
    picture = _draw(planned, out / "trials.png", console)
    baseline = accelerate(model, _adamw, data, byte_lm.loss, strategy=[])
    console.print(f"training both for {job.steps} steps, in turns of {_TURN_STEPS}")
    runs = _train_both(baseline, planned, job.steps)
    result = _result(job, runs, held_out, planned)
    _show(result, console)
    (out / "result.json").write_text(json.dumps(result, indent=2), encoding="utf-8")
    files = [out / "plan.yaml", *picture, out / "result.json"]
    console.print(f"written: {', '.join(str(file) for file in files)}")
    console.print(f"{time.perf_counter() - began:.0f} s in all")
    return 0 if result["speedup"] >= 0.98 else 1


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)


def _draw(planned: Accelerated, path: Path, console: Console) -> list[Path]:
    assert planned.report is not None
    try:
        return [planned.report.picture(path)]
    except ImportError as error:
        console.print(f"no picture: {error}", markup=False)
        return []


def _train_both(
    baseline: Accelerated, planned: Accelerated, steps: int
) -> tuple[Run, Run]:
    """Trains both on the same batches, in turns, so that a slow minute hits both."""
    runs = []
    for accelerated in (baseline, planned):
        torch.manual_seed(0)  # The loader shuffles by it: both see the same batches.
        batches = iter(list(islice(accelerated.batches(), steps + 1)))
        run = Run(accelerated=accelerated, batches=batches, times_s=[], peak_bytes=[])
        accelerated.train_step(next(batches))  # Compiles, and is not timed.
        runs.append(run)
    done = 0
    while done < steps:
        turn = min(_TURN_STEPS, steps - done)
        for run in runs if (done // _TURN_STEPS) % 2 == 0 else reversed(runs):
            run.train(turn)
        done += turn
    return runs[0], runs[1]


@torch.no_grad()
def _bits_per_byte(accelerated: Accelerated, held_out: bytes, job: Job) -> float:
    data = byte_lm.loader(
        held_out, batch_size=job.batch_size, length=job.length, shuffle=False
    )
    total, number = 0.0, 0
    for ids, targets in islice(data, 40):
        batch = (ids.to(accelerated.device), targets.to(accelerated.device))
        total += float(byte_lm.loss(accelerated.model(batch[0]), batch))
        number += 1
    return byte_lm.bits_per_byte(total / number)


def _result(
    job: Job, runs: tuple[Run, Run], held_out: bytes, planned: Accelerated
) -> dict[str, Any]:
    import statistics

    rows = {}
    for name, run in zip(("baseline", "plan"), runs, strict=True):
        step_s = statistics.median(run.times_s)
        rows[name] = {
            "tokens_per_s": job.batch_size * job.length / step_s,
            "step_ms": step_s * 1e3,
            "bits_per_byte": _bits_per_byte(run.accelerated, held_out, job),
        }
    report = planned.report
    assert report is not None
    # Both runs share this process: their peaks come from trials of their own.
    base = report.baseline.measurement
    assert base is not None
    rows["baseline"]["peak_mib"] = base.peak_memory_bytes / _MIB
    rows["plan"]["peak_mib"] = planned.plan.measured["peak_memory_mib"]
    if base.flops_per_step:
        # Some processors have no bfloat16 of their own, and multiply it far more slowly.
        formats = (torch.float32, torch.bfloat16)
        peak = max(_meters.peak_flops_per_s(planned.device, one) for one in formats)
        for name, run in zip(("baseline", "plan"), runs, strict=True):
            rate = base.flops_per_step / statistics.median(run.times_s)
            rows[name]["mfu"] = rate / peak
    return {
        "speedup": rows["plan"]["tokens_per_s"] / rows["baseline"]["tokens_per_s"],
        "rows": rows,
        "plan": planned.plan.to_dict(),
        "search": report.to_dict(),
    }


def _show(result: dict[str, Any], console: Console) -> None:
    base, plan = result["rows"]["baseline"], result["rows"]["plan"]
    table = Table(title="the program as written, and under the plan")
    for column in ("", "baseline", "plan", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    formats = {
        "tokens_per_s": ("tokens/s", "{:,.0f}"),
        "step_ms": ("step, ms (median)", "{:,.1f}"),
        "bits_per_byte": ("held-out bits per byte", "{:.3f}"),
        "peak_mib": ("peak memory, MiB", "{:,.0f}"),
        "mfu": ("MFU of the measured peak", "{:.1%}"),
    }
    for key, (label, text) in formats.items():
        if key in base:
            ratio = f"{plan[key] / base[key]:.2f}x"
            table.add_row(label, text.format(base[key]), text.format(plan[key]), ratio)
    console.print(table)
    console.print(
        f"speed-up {result['speedup']:.2f}x with {Plan.from_dict(result['plan'])}"
    )


if __name__ == "__main__":
    sys.exit(main())
