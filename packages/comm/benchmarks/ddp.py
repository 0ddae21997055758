"""Unchanged DDP scripts on the rig: stock Gloo and `drivetrain_comm.auto` in turns.

Stock runs with its own buckets and with the best of those set by hand; the launched
script tunes itself in the first of its runs, and starts from what it found in the others.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import rig_path  # noqa: F401
from rig.namespaces import missing_because
from rig.report import Bench
from rig.scenarios import SCENARIOS, Scenario
from rig.shape import Link
from rig.trainers import loss_difference

from drivetrain_testing import Row, surroundings

_LAUNCHER = "drivetrain_comm.auto"
_NUM_TUNED = 56
_NUM_STEPS, _NUM_WARMUP = 12, 5
_SWEPT_MB = (4, 8, 12)
# Two hosts that compute for twelve times as long as their link needs.
_NOTHING_TO_GAIN = Scenario(
    num_hosts=2,
    ranks_per_host=1,
    link=Link(rate_mbit_per_s=4000),
    model="even",
    compute_s=1.2,
)


def compare(scenario, num_pairs, sweeps):
    """Returns the figures of one scenario."""
    found = {"stock": [], "tuned": [], "loss": []}
    with (
        kept_apart(),
        Bench(scenario, num_steps=_NUM_STEPS, num_warmup=_NUM_WARMUP) as bench,
    ):
        found["topology"] = bench.topology()
        found["conditions"] = bench.conditions()
        for pair in range(num_pairs):
            stock, figures = bench.train(None)
            found["stock"].append(figures)
            is_first = pair == 0
            num_steps = _NUM_TUNED if is_first else _NUM_STEPS
            tuned, figures = bench.train(_LAUNCHER, num_steps=num_steps)
            found["tuned"].append(figures)
            if is_first:
                # The steps before the tuner has decided count for nothing here.
                figures["median_s"] = statistics.median(tuned.steps_s[-8:])
            else:
                found["loss"].append(loss_difference(stock, tuned))
        if sweeps:
            found["swept"] = {mb: bench.train(None, mb)[1] for mb in _SWEPT_MB}
    return {**found, **ratios(found)}


def ratios(found):
    """Returns what runs of one scenario amount to."""
    stock, tuned = (
        statistics.median(run["median_s"] for run in found[name])
        for name in ("stock", "tuned")
    )
    swept = [run["median_s"] for run in found.get("swept", {}).values()]
    bound = found["topology"]["step_bound_s"]
    return {
        "stock_s": stock,
        "tuned_s": tuned,
        "gain": stock / tuned,
        "gain_swept": min([stock, *swept]) / tuned if swept else None,
        "efficiency": bound / tuned,
        "loss_difference": max(found["loss"], default=0.0),
    }


@contextmanager
def kept_apart():
    """Gives trainings a cache of their own, and the launchers of this folder."""
    before = dict(os.environ)
    folders = [str(Path(__file__).parent), before.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DRIVETRAIN_COMM_CACHE"] = folder
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
        try:
            yield Path(folder)
        finally:
            os.environ.clear()
            os.environ.update(before)


def measure(names, num_pairs, sweeps, keep=None):
    """Measures scenarios one after the other; what is done is kept as it comes."""
    results = {}
    for name in names:
        results[name] = found = compare(SCENARIOS[name], num_pairs, sweeps)
        swept = found["gain_swept"]
        sys.stderr.write(
            f"{name}: stock {found['stock_s']:.3f} s, tuned {found['tuned_s']:.3f} s, "
            f"{found['gain']:.2f} x, by hand {swept or float('nan'):.2f} x, "
            f"efficiency {found['efficiency']:.2f}\n"
        )
        if keep:
            whole = {"scenarios": results, **surroundings()}
            Path(keep).write_text(json.dumps(whole, indent=1))
    return results


def geometric_mean(values):
    return statistics.geometric_mean(list(values))


def scenarios(quick):
    """The claim of this package: all scenarios, one geometric mean."""
    because = missing_because()
    if because:
        return Row(figure=because, holds=None)
    if quick:
        return Row(figure="takes half an hour: python benchmarks/ddp.py", holds=None)
    results = measure(SCENARIOS, 3, sweeps=True)
    gains = {name: found["gain"] for name, found in results.items()}
    mean = geometric_mean(gains.values())
    straight = geometric_mean(g for n, g in gains.items() if "shuffled" not in n)
    swept = geometric_mean(found["gain_swept"] for found in results.values())
    least, best = min(gains.values()), max(gains.values())
    return Row(
        figure=f"{mean:.2f} x ({straight:.2f} x without shuffled ranks), best "
        f"{best:.2f} x, least {least:.2f} x; {swept:.2f} x buckets by hand",
        holds=mean >= 1.5 and best >= 2 and swept >= 1.15 and least >= 1.15,
        proven_on="namespaces",
        details=results,
    )


def overhead(quick):
    """What the tuned backend costs where communication hides behind computing anyway."""
    because = missing_because()
    if because:
        return Row(figure=because, holds=None)
    if quick:
        return Row(figure="takes some minutes", holds=None)
    found = compare(_NOTHING_TO_GAIN, 3, sweeps=False)
    ratio = found["tuned_s"] / found["stock_s"]
    return Row(
        figure=f"{ratio:.3f} x stock's step of {found['stock_s']:.3f} s, of which "
        f"{_NOTHING_TO_GAIN.compute_s:g} s compute",
        holds=ratio <= 1.01,
        proven_on="namespaces",
        details=found,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--only", action="append", choices=SCENARIOS, metavar="NAME")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--sweep", action="store_true", help="stock's buckets by hand")
    parser.add_argument("--json", metavar="FILE", help="keep all figures there")
    arguments = parser.parse_args()
    because = missing_because()
    if because:
        sys.exit(because)
    names = arguments.only or SCENARIOS
    results = measure(names, arguments.pairs, arguments.sweep, arguments.json)
    print(f"geometric mean {geometric_mean(r['gain'] for r in results.values()):.2f} x")


if __name__ == "__main__":
    main()
