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
from rig.namespaces import missing_because
from rig.report import Bench
from rig.scenarios import SCENARIOS

from drivetrain_comm._cache import dump_tactic, load_tactic
from drivetrain_comm._choice import STOCK
from drivetrain_core.testing import Row

_SCENARIOS = ("2x4-1000mbit-even", "4x2-800mbit-embedding")
_NUM_SEARCH = 50
# Enough for every tactic of these scenarios, where one stream fills a link.
_MOST_TACTICS = 56
_STOCK_BUCKET_BYTES = 25 << 20


@functools.cache
def compare(name):
    """Returns the tactics' medians, the tuner's choice, and what finding it took."""
    with tempfile.TemporaryDirectory() as temporary, ddp.kept_apart() as kept:
        file = Path(temporary, "found.json")
        with Bench(SCENARIOS[name], num_steps=_NUM_SEARCH + 10, num_warmup=5) as bench:
            tuned, _ = bench.train("drivetrain_comm.auto")
            cached = json.loads(next(kept.glob("*.json")).read_text())
            choice = load_tactic(json.dumps(cached["tactic"]))
            os.environ["EXHAUSTIVE_FILE"] = str(file)
            os.environ["EXHAUSTIVE_CHOICE"] = dump_tactic(choice)
            with ddp.kept_apart():
                steps = exhaustive.num_steps(_MOST_TACTICS)
                bench.train("exhaustive", num_steps=steps)
        found = json.loads(file.read_text())
    steps_s = tuned.steps_s
    usual = statistics.median(steps_s[_NUM_SEARCH:])
    cost = sum(steps_s[:_NUM_SEARCH]) / (_NUM_SEARCH * usual) - 1
    return {**found, "choice": dump_tactic(choice), "cost": cost, "steps_s": steps_s}


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
    """What tuning jointly gains over one layer after the other, and over each alone."""
    because = _because(quick)
    if because:
        return Row(figure=because, holds=None)
    found = {name: layers(_tactics(compare(name)["every"])) for name in _SCENARIOS}
    lines, holds = [], True
    for name, spans in found.items():
        gains = {layer: spans["stock"] / span for layer, span in spans.items()}
        chosen = _tactics(compare(name)["every"])[load_tactic(compare(name)["choice"])]
        lines.append(
            f"{name}: buckets {gains['buckets']:.2f} x, algorithm "
            f"{gains['algorithm']:.2f} x, layer by layer "
            f"{gains['layer by layer']:.2f} x, joint {gains['joint']:.2f} x"
        )
        holds &= chosen <= 1.02 * spans["layer by layer"]
    return Row(
        figure="; ".join(lines), holds=holds, proven_on="namespaces", details=found
    )


def layers(every):
    """Returns the spans that tuning some layers only would have come to.

    Args:
        every: The median span of each tactic.
    """

    def best(**fixed):
        return min(
            (tactic for tactic in every if _agrees(tactic, fixed)),
            key=every.__getitem__,
        )

    start = best(algorithm=STOCK, bucket_bytes=_STOCK_BUCKET_BYTES)
    buckets = best(algorithm=STOCK)
    algorithm = best(bucket_bytes=_STOCK_BUCKET_BYTES, num_streams=1)
    second = best(bucket_bytes=buckets.bucket_bytes, num_streams=1)
    third = best(bucket_bytes=second.bucket_bytes, algorithm=second.choice.algorithm)
    ends = {
        "stock": start,
        "buckets": buckets,
        "algorithm": algorithm,
        "layer by layer": third,
        "joint": best(),
    }
    return {layer: every[tactic] for layer, tactic in ends.items()}


def _agrees(tactic, fixed):
    values = {
        "bucket_bytes": tactic.bucket_bytes,
        "algorithm": tactic.choice.algorithm,
        "num_streams": tactic.choice.num_streams,
    }
    return all(values[name] == value for name, value in fixed.items())


def _tactics(spans):
    return {load_tactic(text): seconds for text, seconds in spans.items()}


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
