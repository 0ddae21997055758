"""Reproduces published throughput, memory and orders with the cost model.

Run as a script, it prints the tables that `docs/explanation/simulate.md` holds.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import sys

from drivetrain_parallel.simulate.ablation import best_at_scale, predict_ablation
from drivetrain_parallel.simulate.published import predict_row, published_rows
from drivetrain_parallel.simulate.tables import (
    ablation_table,
    ranking_table,
    rows_table,
    summary_table,
)
from drivetrain_testing import Row

WITHIN = 0.10
MEMORY_WITHIN = 0.15
ROWS, LATER_ROWS = 121, 6
REPORTED, WANTED = 0.552, 0.58
APART = (1 + WITHIN) / (1 - WITHIN)
DRAWN = (0.03, 0.05, 0.10, 0.15)


def outcomes():
    """Every published row with what is predicted for it."""
    return [predict_row(row) for row in published_rows()]


def measure_rows(quick):
    """How many rows that were not fitted to are within a tenth, and memory."""
    del quick
    found = outcomes()
    tests = [each for each in found if not each.row.calibrates]
    near = [each for each in tests if abs(each.error) <= WITHIN]
    later = [each for each in tests if each.row.is_later]
    new = sum(each.row.is_later for each in near)
    old = len(near) - new
    memory = [each for each in found if each.memory_error is not None]
    fits = [each for each in memory if abs(each.memory_error) <= MEMORY_WITHIN]
    return Row(
        figure=f"{old} of {len(tests) - len(later)} within {WITHIN:.0%}, and {new} of "
        f"{len(later)} that were added later; memory of {len(fits)} "
        f"of {len(memory)} within {MEMORY_WITHIN:.0%}, settled with them in sight; "
        f"{len(found) - len(tests)} other rows calibrate",
        holds=old >= ROWS and new >= LATER_ROWS and len(fits) == len(memory),
        proven_on="simulation",
        details={
            "tests": len(tests),
            "within": len(near),
            "recalled_within": sum(each.row.is_recalled for each in near),
            "errors": [each.error for each in tests],
            "memory_errors": [each.memory_error for each in memory],
        },
    )


def measure_order(quick):
    """Whether the meshes of one model are predicted in the order that was measured.

    Rows that calibrate do not count.
    """
    del quick
    return order_of([each for each in meshes() if not each.row.calibrates])


def measure_whole_order(quick):
    """The same with the rows that calibrate, for the pairs that a tenth cannot swap.

    Where each of two predictions is off by at most w, the one that was measured to be
    faster by a ratio r is predicted to be slower only if r (1 - w) < 1 + w. So a model
    that keeps what `published-rows` asks for, w = 0.10, orders every pair above r = 1.22
    and may swap any below. Of the ten pairs eight are above: the limit. The two below
    are 8% and 17% apart, and the source prints a row of the latter as 9,200 to 9,900.
    How often a model of a given error orders all ten is drawn, for the details.
    """
    del quick
    found = meshes()
    row = order_of(found)
    far = [pair for pair in itertools.combinations(found, 2) if ratio(*pair) > APART]
    kept = sum(in_order(*pair) for pair in far)
    measured = [each.row.measured for each in found]
    drawn = {f"{error:.0%}": all_in_order(measured, error) for error in DRAWN}
    return dataclasses.replace(
        row,
        figure=f"{kept} of {len(far)} pairs more than {APART - 1:.0%} apart; {row.figure}",
        holds=kept == len(far),
        details={**row.details, "all_in_order_with_errors_of": drawn},
    )


def all_in_order(measured, error, draws=10_000):
    """How often a model orders all rows, if each is off by a normal error in log."""
    draw = random.Random(0).gauss
    ordered = sorted(measured, reverse=True)
    right = 0
    for _ in range(draws):
        drawn = [value * math.exp(draw(0.0, error)) for value in ordered]
        right += drawn == sorted(drawn, reverse=True)
    return right / draws


def meshes():
    """The rows of the one source that measured several meshes of a model."""
    return [each for each in outcomes() if each.row.source == "nanotron"]


def order_of(found):
    """How many pairs are in order."""
    pairs = list(itertools.combinations(found, 2))
    right = [pair for pair in pairs if in_order(*pair)]
    order = sorted(found, key=lambda each: -each.predicted)
    shapes = ", ".join(str(each.row.shape) for each in order)
    return Row(
        figure=f"{len(right)} of {len(pairs)} pairs of {len(found)} rows in order, of "
        f"which {sum(each.row.calibrates for each in found)} calibrate (predicted: "
        f"{shapes})",
        holds=len(right) == len(pairs),
        proven_on="simulation",
        details={
            "measured": [each.row.measured for each in found],
            "predicted": [each.predicted for each in found],
            "calibrates": [each.row.calibrates for each in found],
        },
    )


def ratio(one, other):
    """How many times as fast the faster of two was measured to be."""
    return max(
        one.row.measured / other.row.measured, other.row.measured / one.row.measured
    )


def in_order(one, other):
    """Whether the one of two that was measured to be faster is predicted to be."""
    measured = one.row.measured - other.row.measured
    return (one.predicted - other.predicted) * measured > 0


def measure_ablation(quick):
    """MegaScale's steps, and a plan for its largest job."""
    del quick
    steps = predict_ablation()
    ranking, own = best_at_scale()
    best = ranking.best
    errors = [step.error for step in steps]
    return Row(
        figure=f"{steps[0].predicted:.1f}% to {steps[-1].predicted:.1f}% (47.7 to 65.3), "
        f"{sum(abs(e) <= WITHIN for e in errors)} of {len(errors)} steps within "
        f"{WITHIN:.0%}; 12,288 GPUs: {own.mfu:.1%} on its mesh ({REPORTED:.1%}), "
        f"{best.prediction.mfu:.1%} on {best.shape}",
        holds=best.prediction.mfu >= WANTED
        and abs(own.mfu / REPORTED - 1) <= WITHIN
        and max(map(abs, errors)) <= WITHIN,
        proven_on="simulation",
        details={step.step.name: step.error for step in steps},
    )


def main():
    """Prints the tables."""
    found = outcomes()
    ranking, own = best_at_scale()
    for text in (
        summary_table(found),
        rows_table(found),
        ablation_table(predict_ablation()),
        f"MegaScale's own mesh on 12,288 GPUs: {own.mfu:.1%}",
        ranking_table(ranking, 5),
    ):
        print(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
