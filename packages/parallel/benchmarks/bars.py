"""Measures on this machine what drivetrain-parallel claims, against its bounds.

`--quick` ends within a minute; the whole takes half an hour on two cores.
"""

from __future__ import annotations

import sys

import matrix
import mesh_failure
import overlap
import planning
import published

from drivetrain_testing import Bar, run_bars

BARS = (
    Bar(
        name="mesh-matrix",
        bound="15 families on 10 meshes: >= 85% run exactly with >= 70% of each block "
        "shared, none wrong",
        measure=matrix.measure,
    ),
    Bar(
        name="rank-raises",
        bound="all ranks end within the time-out of their group + 5 s",
        measure=mesh_failure.measure,
    ),
    Bar(
        name="planning",
        bound="an 8B model for 64 GPUs: meshes ranked in <= 1 x the time of its profile",
        measure=planning.measure,
    ),
    Bar(
        name="published-rows",
        bound=">= 121 of the first 135 and >= 6 later ones within 10% of MFU, memory "
        "within 15%",
        measure=published.measure_rows,
    ),
    Bar(
        name="published-order",
        bound="measured meshes in their order, rows that calibrate apart",
        measure=published.measure_order,
    ),
    Bar(
        name="published-order-all",
        bound="all pairs that errors of 10% cannot swap, 8 of 10, in their order",
        measure=published.measure_whole_order,
    ),
    Bar(
        name="published-ablation",
        bound="each step within 10%; >= 58% MFU found where 55.2% was reported",
        measure=published.measure_ablation,
    ),
    *overlap.BARS,
)


if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__.split("\n", 1)[0]))
