"""What the tuner finds, beside the best of everything, and what its search costs."""

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

from drivetrain_core.testing import Row

_SCENARIOS = ("2x4-1000mbit-even", "4x2-800mbit-embedding")
_NUM_SEARCH = 50
# Enough for every tactic of any scenario here.
_MOST_TACTICS = 40


def compare(name):
    """Returns the tactics' medians, the tuner's choice, and what finding it took."""
    folder = Path(__file__).parent
    with tempfile.TemporaryDirectory() as temporary, ddp.kept_apart():
        file = Path(temporary, "found.json")
        os.environ["EXHAUSTIVE_FILE"] = str(file)
        paths = [str(folder), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with Bench(SCENARIOS[name], num_steps=_NUM_SEARCH + 10, num_warmup=5) as bench:
            tuned, _ = bench.train("drivetrain_comm.auto")
            cache = next(Path(os.environ["DRIVETRAIN_COMM_CACHE"]).glob("*.json"))
            tactic = json.loads(cache.read_text())["tactic"]
            steps = exhaustive.num_steps(_MOST_TACTICS)
            with ddp.lasting(bench, steps), ddp.kept_apart():
                bench.train("exhaustive")
        every = json.loads(file.read_text())
    steps_s = tuned.steps_s
    usual = statistics.median(steps_s[_NUM_SEARCH:])
    cost = sum(steps_s[:_NUM_SEARCH]) / (_NUM_SEARCH * usual) - 1
    return {"every": every, "tactic": tactic, "cost": cost, "steps_s": steps_s}


def tuner(quick):
    """The claim: near the best of everything, soon, at little cost."""
    because = missing_because()
    if because or quick:
        return Row(figure=because or "takes minutes: --only tuner", holds=None)
    found = {name: compare(name) for name in _SCENARIOS}
    lines, holds = [], True
    for name, one in found.items():
        best = min(one["every"].values())
        mine = one["every"][_name(one["tactic"])]
        lines.append(f"{mine / best:.3f} x the best, cost {one['cost']:.1%} ({name})")
        holds &= mine <= 1.02 * best and one["cost"] < 0.05
    return Row(
        figure="; ".join(lines), holds=holds, proven_on="namespaces", details=found
    )


def _name(fields):
    from drivetrain_comm._cache import load_tactic

    return str(load_tactic(json.dumps(fields)))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    row = tuner(False)
    print(row.figure)
    print(json.dumps(row.details, indent=1))
    sys.exit(not row.holds)
