"""Measures on this machine what drivetrain-core claims, against its bounds.

`--quick` ends within a minute; the whole takes half an hour on two cores, most of it
for the two commands of the README.
"""

from __future__ import annotations

import sys

import imports
import overhead
import plan_check
import readme

from drivetrain_testing import Bar, run_bars

BARS = (
    Bar(
        name="readme-commands",
        bound="both exit 0 on a clean clone",
        measure=readme.measure,
    ),
    Bar(
        name="step-overhead",
        bound="<= 15% of a step by hand that does next to nothing",
        measure=overhead.measure,
    ),
    Bar(
        name="plan-check",
        bound="<= three steps of the program and 2 s",
        measure=plan_check.measure,
    ),
    Bar(
        name="import-time",
        bound="<= 3% of import torch",
        measure=imports.measure,
    ),
)


if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__.split("\n", 1)[0]))
