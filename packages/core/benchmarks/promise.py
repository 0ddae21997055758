"""What a plan promises beside what training under it shows.

A search promises a speed-up over the program as written. Both then train in processes
of their own, in turns, and the ratio of their steps gets an interval.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from rivals import in_turns_times, searched

from drivetrain_core import Measurement
from drivetrain_core.search.final import compare
from drivetrain_core.testing import Row

WITHIN = 0.03
MODELS = ("language-model", "mlp", "diffusion-transformer", "lstm", "u-net")
TURNS = 8


def kept(name, folder):
    accelerated, path, _ = searched(name, folder)
    times = in_turns_times(name, {"written": "", "plan": str(path)}, TURNS)
    seen = compare(*(steps(times[key]) for key in ("written", "plan")))
    promised = accelerated.plan.measured["vs_baseline"]
    return {
        "promised": promised,
        "seen": seen.speedup,
        "low": seen.low,
        "high": seen.high,
        "off": seen.speedup / promised - 1.0,
        "plan": str(accelerated.plan),
    }


def steps(times):
    return Measurement(step_times_s=tuple(times), samples_per_step=1)


def measure(quick):
    """By how much the speed-up of training differs from the plan's promise."""
    if quick:
        return Row(figure="takes longer than the quick form", holds=None)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: kept(name, Path(folder)) for name in MODELS}
    off = statistics.median(abs(each["off"]) for each in found.values())
    parts = "; ".join(
        f"{name} {each['promised']:.2f}x promised, {each['seen']:.2f}x seen "
        f"({each['low']:.2f} to {each['high']:.2f})"
        for name, each in found.items()
    )
    # A model whose interval reaches into the bound does not contradict it.
    holds = all(
        each["low"] <= each["promised"] * (1 + WITHIN)
        and each["high"] >= each["promised"] * (1 - WITHIN)
        for each in found.values()
    )
    return Row(
        figure=f"{off:.1%} off in the median ({parts})",
        holds=holds and off <= WITHIN,
        details=found,
    )
