"""What the main job has found, as plain data: of which table, picture and file are made."""

from __future__ import annotations

import math
import platform
import statistics
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import torch

from drivetrain import versions
from drivetrain.quickstart._verdict import mfu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain.quickstart._carry import Carried
    from drivetrain.quickstart._elastic_job import Outcome
    from drivetrain.quickstart._elastic_spec import ElasticSpec
    from drivetrain.quickstart._kill_report import Count, LossGap
    from drivetrain.quickstart._run import Run
    from drivetrain.quickstart._speed_up import SpeedUp
    from drivetrain.quickstart._verdict import Promise
    from drivetrain_core import Plan
    from drivetrain_search import Report

_MIB = 1 << 20


def finite(value: Any) -> Any:
    """Returns plain data in which None stands for each number that JSON does not have.

    Example:
        >>> finite({"loss": [1.0, float("nan")]})
        {'loss': [1.0, None]}
    """
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def about_machine(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns where and when it ran.

    Args:
        facts: What the program as written has said of itself.
    """
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "device": facts["device"],
        "num_threads": facts["num_threads"],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "versions": versions(),
    }


def about_search(report: Report, plan: Plan) -> dict[str, Any]:
    """Returns what was tried, and what came of it."""
    tried = [trial for trial in report.trials[1:] if trial.measurement is not None]
    best = max((report.speedup(trial) for trial in tried), default=None)
    return {
        "plan": plan.to_dict(),
        "plan_text": str(plan),
        "is_baseline": not plan.choices,
        "num_trials": len(report.trials),
        "best_tried": best,
        "report": report.to_dict(),
    }


def about_pair(
    runs: Sequence[Run],
    *,
    speed: SpeedUp | None,
    flops: int | None,
    bits: Sequence[float | None],
) -> dict[str, Any]:
    """Returns what each run showed, and by how much the plan is faster.

    Args:
        runs: The program as written, and the plan unless it is the same.
        speed: Of the plan; None where there is none.
        flops: Of a step; None if they cannot be counted.
        bits: What a byte of held-out text takes, for each run, where that is asked.
    """
    facts = runs[0].facts
    peaks = [rate for run in runs for rate in run.peak_flops_per_s]
    peak = max(peaks, default=None)
    rows = []
    for run, bits_per_byte in zip(runs, bits, strict=True):
        step_s = statistics.median(run.times_s)
        amount = facts["num_tokens"] or facts["batch_size"]
        rows.append(
            {
                "name": run.name,
                "step_ms": step_s * 1e3,
                "per_s": amount / step_s,
                "bits_per_byte": bits_per_byte,
                "last_loss": run.losses[-1],
                "peak_mib": max(run.peak_bytes) / _MIB,
                "mfu": mfu(flops, step_s, peak),
                "losses": run.losses,
            }
        )
    shares = [row["mfu"] for row in rows]
    if None in shares:  # What one run shows to be no peak is none for the other.
        rows = [row | {"mfu": None} for row in rows]
    return {
        "unit": "tokens/s" if facts["num_tokens"] else "samples/s",
        "num_steps": len(runs[0].losses),
        "rows": rows,
        "speed_up": None if speed is None else speed._asdict(),
    }


def about_job(
    spec: ElasticSpec, outcome: Outcome, counted: Count, gap: LossGap, carried: Carried
) -> dict[str, Any]:
    """Returns what became of the training in which a worker was killed."""
    return {
        "num_workers": spec.num_workers,
        "num_standbys": spec.num_standbys,
        "num_steps": spec.num_steps,
        "global_batch": spec.global_batch,
        "kill": None if outcome.kill is None else outcome.kill._asdict(),
        "exit_code": outcome.exit_code,
        "pause_s": counted.pause_s,
        "step_s": counted.step_s,
        "steps_counted": counted.num_steps,
        "steps_lost": counted.steps_lost,
        "steps_again": counted.steps_again,
        "samples_lost": counted.samples_lost,
        "samples_repeated": counted.samples_repeated,
        "gap_before": gap.before,
        "gap_after": gap.after,
        "gap_most_after": gap.most_after,
        "losses": list(counted.losses),
        "reserve_ready_s": outcome.reserve_ready_s,
        "first_step_s": outcome.first_step_s,
        "checkpoint": outcome.checkpoint,
        "left_out": [list(pair) for pair in carried.left_out],
    }


def about_verdict(promises: Sequence[Promise]) -> list[dict[str, Any]]:
    """Returns each promise, and whether it was kept."""
    return [promise._asdict() for promise in promises]
