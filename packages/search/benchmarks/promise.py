"""What a plan promises beside what training under it shows.

A search promises a speed-up over the program as written. Both then train in turns, in
several sets of processes, and the ratio of their steps gets an interval.
"""

from __future__ import annotations

import statistics

from rivals import all_compared

from drivetrain_testing import Row

WITHIN = 0.03


def off(program):
    return program["of_written"] / program["promised"] - 1.0


def contradicts(program):
    """Whether the whole interval lies outside the bound."""
    low, high = program["interval"]
    promised = program["promised"]
    return low > promised * (1 + WITHIN) or high < promised * (1 - WITHIN)


def measure(quick):
    """By how much the speed-up of training differs from the plan's promise."""
    if quick:
        return Row(figure="takes longer than the quick form", holds=None)
    found = all_compared()
    usual = statistics.median(abs(off(program)) for program in found.values())
    parts = "; ".join(
        f"{name} {program['promised']:.2f}x promised, {program['of_written']:.2f}x seen "
        "({:.2f} to {:.2f})".format(*program["interval"])
        for name, program in found.items()
    )
    broken = [name for name, program in found.items() if contradicts(program)]
    return Row(
        figure=f"{usual:.1%} off in the median, {len(broken)} of {len(found)} outside "
        f"({parts})",
        holds=not broken and usual <= WITHIN,
        details={name: off(program) for name, program in found.items()},
    )
