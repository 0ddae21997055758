"""Goodput, simulated: figures of others, our own times at 12,288 GPUs, and the speed of it."""

import sys
import time
from dataclasses import replace

from published_goodput import published_cases

from drivetrain_cloud.goodput import (
    Origin,
    break_even,
    get_input,
    preset,
    simulate,
    simulate_many,
    with_input,
)
from drivetrain_testing import Row

_NODES, _DAYS = 1536, 90.0
_MOST_POINTS, _LEAST = 3.0, 0.98
# What moves the goodput most, by `drivetrain-cloud goodput --sensitivity`.
_INPUTS = ("mtbf_h", "hang_timeout_s", "corruption_s", "manual_share")


def published(quick):
    """Cases that others have published; what a constant was fitted to is no test."""
    found = [case.run(range(4 if quick else 20)) for case in published_cases()]
    tests = [one for one in found if one.case.is_test]
    worst = max(tests, key=lambda one: abs(one.error_points))
    free = [one for one in tests if not one.case.fitted_to]
    worst_free = max(free, key=lambda one: abs(one.error_points))
    return Row(
        figure=f"{len(tests)} figures, at most {abs(worst.error_points):.1f} points off "
        f"({worst.case.name}); {len(free)} of them with nothing fitted, at most "
        f"{abs(worst_free.error_points):.1f} ({worst_free.case.name})",
        holds=all(abs(one.error_points) <= _MOST_POINTS for one in tests),
        proven_on="simulation",
        details={
            one.case.name: [one.case.figure, one.goodput, one.case.fitted_to]
            for one in found
        },
    )


def predicted(quick):
    """Our measured recovery times at 12,288 GPUs that fail as those of Llama 3 did."""
    job = preset("drivetrain").config(num_nodes=_NODES)
    seeds = range(3 if quick else 20)
    summary = simulate_many(job, days=_DAYS, seeds=seeds)
    worse = {
        factor: simulate_many(slower(job, factor), days=_DAYS, seeds=seeds).goodput
        for factor in (10, 100)
    }
    limits = {} if quick else {name: limit(job, name) for name in _INPUTS}
    return Row(
        figure=f"{summary.goodput:.2%} ({summary.lowest:.2%} to {summary.highest:.2%} in "
        f"{len(seeds)} runs of {_DAYS:g} days, a failure each {job.mtbf_s / 3600:.2f} h); "
        + "; ".join(
            f"all that we measured {factor} times as long: {share:.2%}"
            for factor, share in worse.items()
        )
        + "".join(f"; 98% until {name} is {text}" for name, text in limits.items()),
        holds=summary.goodput >= _LEAST,
        proven_on="simulation",
        details={
            "lost": {loss.value: s for loss, s in summary.lost_shares.items()},
            "limits": limits,
        },
    )


def slower(job, factor):
    """The job with all times that were measured, which is on a CPU, made longer."""
    for name, one in preset("drivetrain").recovery.items():
        if one.origin == Origin.MEASURED and one.value:
            job = with_input(job, name, one.value * factor)
    return job


def limit(job, name):
    """The value of an input at which less than 98% counts."""
    factor = break_even(job, name, target=_LEAST, days=_DAYS)
    if factor is None:
        return "anything"
    value = get_input(job, name)
    return f"{value / factor if name == 'mtbf_h' else value * factor:.2g}"


def speed(quick):
    """How long 90 days of 12,288 GPUs take, and of ten times as many."""
    del quick
    job = preset("drivetrain").config(num_nodes=_NODES)
    took_s = {}
    for num_nodes in (_NODES, 10 * _NODES):
        began_s = time.perf_counter()
        run = simulate(replace(job, num_nodes=num_nodes), days=_DAYS)
        took_s[num_nodes] = (
            time.perf_counter() - began_s,
            sum(run.num_failures.values()),
        )
    ratio = took_s[10 * _NODES][0] / took_s[_NODES][0]
    return Row(
        figure=f"{ratio:.1f} x: "
        + "; ".join(
            f"{seconds:.2f} s for {_DAYS:g} days of {nodes * 8:,} GPUs, "
            f"{failures} failures"
            for nodes, (seconds, failures) in took_s.items()
        ),
        holds=ratio <= 20.0,
        proven_on="simulation",
    )


if __name__ == "__main__":
    for measure in (published, predicted, speed):
        print(measure.__name__, measure("--quick" in sys.argv).figure, flush=True)
