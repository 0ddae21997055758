"""What the tuner finds, beside the best of everything, and what its search costs."""

import functools
import json
import logging
import os
import statistics
import sys
import tempfile
from pathlib import Path

import ddp
import exhaustive
from layers import layers
from rig.namespaces import missing_because
from rig.report import Bench
from rig.scenarios import SCENARIOS

from drivetrain_comm.ddp._cache import dump_plan, load_plan
from drivetrain_testing import Row

_SCENARIOS = ("2x4-1000mbit-even", "4x2-800mbit-embedding")
_NUM_SEARCH = 50
# Enough for every plan of these scenarios, where one stream fills a link.
_MOST_TACTICS = 56


@functools.cache
def compare(name):
    """Returns the plans' medians, the tuner's choice, and what finding it took."""
    with tempfile.TemporaryDirectory() as temporary, ddp.kept_apart() as kept:
        file = Path(temporary, "found.json")
        with Bench(SCENARIOS[name], num_steps=_NUM_SEARCH + 10, num_warmup=5) as bench:
            tuned, _ = bench.train("drivetrain_comm.auto")
            cached = json.loads(next(kept.glob("*.json")).read_text())
            choice = load_plan(json.dumps(cached["tactic"]))
            os.environ["EXHAUSTIVE_FILE"] = str(file)
            os.environ["EXHAUSTIVE_CHOICE"] = dump_plan(choice)
            with ddp.kept_apart():
                steps = exhaustive.num_steps(_MOST_TACTICS)
                bench.train("exhaustive", num_steps=steps)
        found = json.loads(file.read_text())
    steps_s = tuned.steps_s
    usual = statistics.median(steps_s[_NUM_SEARCH:])
    cost = sum(steps_s[:_NUM_SEARCH]) / (_NUM_SEARCH * usual) - 1
    return {**found, "choice": dump_plan(choice), "cost": cost, "steps_s": steps_s}


def tuner(quick):
    """The claim: near the best of everything, soon, at little cost."""
    because = _because(quick)
    if because:
        return Row(figure=because, holds=None)
    found = {name: compare(name) for name in _SCENARIOS}
    lines, holds = [], True
    for name, one in found.items():
        ratio = one["final"][one["choice"]] / min(one["final"].values())
        lines.append(f"{ratio:.3f} x the best, cost {one['cost']:.1%} ({name})")
        holds &= ratio <= 1.02 and one["cost"] < 0.05
    return Row(
        figure="; ".join(lines), holds=holds, proven_on="namespaces", details=found
    )


def ablation(quick):
    """What the tuner gains over tuning one layer after the other."""
    because = _because(quick)
    if because:
        return Row(figure=because, holds=None)
    found = {name: gains(compare(name)) for name in _SCENARIOS}
    lines = [
        f"{one['joint over layers']:.2f} x layer by layer (buckets alone "
        f"{one['buckets']:.2f} x stock, algorithm alone {one['algorithm']:.2f} x, layer "
        f"by layer {one['layer by layer']:.2f} x, joint {one['joint']:.2f} x; {name})"
        for name, one in found.items()
    ]
    return Row(
        figure="; ".join(lines),
        holds=all(one["joint over layers"] >= 0.98 for one in found.values()),
        proven_on="namespaces",
        details=found,
    )


def gains(measured):
    """Returns how much faster than stock each way of tuning ends up.

    Args:
        measured: What `compare` returned.
    """
    every, final = _plans_of(measured["every"]), _plans_of(measured["final"])
    ends = layers(every)
    found = {way: every[ends["stock"]] / every[end] for way, end in ends.items()}
    # What the tuner chose and where layer by layer ends were both finalists.
    layered, chosen = ends["layer by layer"], load_plan(measured["choice"])
    found["joint over layers"] = final[layered] / final[chosen]
    return found


def _plans_of(spans):
    return {load_plan(text): seconds for text, seconds in spans.items()}


def _because(quick):
    """Returns why there is nothing to measure, or None."""
    if quick:
        return "takes minutes: --only tuner --only ablation"
    return missing_because()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    rows = [tuner(False), ablation(False)]
    for row in rows:
        print(row.figure)
        print(json.dumps(row.details, indent=1))
    sys.exit(not all(row.holds for row in rows))
