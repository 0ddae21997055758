"""Measures on this machine what drivetrain-core claims, against its bounds.

`--quick` ends within a minute; the whole takes some hours on two cores, most
of it for the ten programs and the two commands of the README. `record_spaces.py` records
the spaces anew.
"""

from __future__ import annotations

import sys

import faults
import imports
import live
import lost
import matrix
import memory
import mesh_bugs
import mesh_failure
import mesh_search
import overhead
import planning
import promise
import published
import readme
import replay
import rivals
import silent_bugs
import ten_pairs
import three_minutes

from drivetrain_core.testing import Bar, run_bars

BARS = (
    Bar(
        name="readme-commands",
        bound="both exit 0 on a clean clone",
        measure=readme.measure,
    ),
    Bar(
        name="plan-of-recorded-best",
        bound="three spaces: >= 0.98, worst >= 0.95; <= 24 dry runs, <= 5% of the large "
        "sweep's time, better than random search",
        measure=replay.measure,
    ),
    Bar(
        name="plan-of-recorded-best-live",
        bound=">= 0.95 of the recorded best, measured in turns, <= 24 dry runs",
        measure=live.measure,
    ),
    Bar(
        name="three-minutes",
        bound=">= 0.95 of the best plan of a sweep in 11 of 12 programs, none slower than "
        "it is as written; half-widths <= 3% (recorded by three_minutes.py)",
        measure=three_minutes.measure,
    ),
    Bar(
        name="first-useful-plan",
        bound="<= a third of the budget until a plan within 10% of the final one, median",
        measure=three_minutes.measure_useful,
    ),
    Bar(
        name="promised-step",
        bound="<= 3% off, or half of what five processes differ by, median",
        measure=three_minutes.measure_promise,
    ),
    Bar(
        name="pairs-of-searches",
        bound="two searches of a minute: plans within 3% beyond what processes differ by, "
        "in 9 of 10 (recorded by ten_pairs.py)",
        measure=ten_pairs.measure,
    ),
    Bar(
        name="ten-programs",
        bound="none slower; >= 1.1x the best of Accelerate and Fabric by hand",
        measure=rivals.measure,
    ),
    Bar(
        name="silent-bugs",
        bound="all caught, no false alarm",
        measure=silent_bugs.measure,
    ),
    Bar(
        name="promise",
        bound="within 3% of what training shows",
        measure=promise.measure,
    ),
    Bar(
        name="memory-forecast",
        bound="within 2% of the measured peak",
        measure=memory.measure,
    ),
    Bar(
        name="lost-to-memory",
        bound="<= 10% of trials, with half of the plans too large",
        measure=lost.measure,
    ),
    Bar(
        name="mesh-matrix",
        bound="15 families on 10 meshes: >= 85% run exactly with >= 70% of each block "
        "shared, none wrong",
        measure=matrix.measure,
    ),
    Bar(
        name="mesh-silent-bugs",
        bound="10 of 10 caught",
        measure=mesh_bugs.measure,
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
        bound=">= 16 within 10% of MFU, memory within 15%",
        measure=published.measure_rows,
    ),
    Bar(
        name="published-order",
        bound="measured meshes in their order, rows that calibrate apart",
        measure=published.measure_order,
    ),
    Bar(
        name="published-order-all",
        bound="all of them in their order",
        measure=published.measure_whole_order,
    ),
    Bar(
        name="published-ablation",
        bound="each step within 10%; >= 58% MFU found where 55.2% was reported",
        measure=published.measure_ablation,
    ),
    Bar(
        name="mesh-search",
        bound=">= 0.95 of the best measured mesh",
        measure=mesh_search.measure,
    ),
    Bar(
        name="broken-trials",
        bound="<= time-out + 5 s each, no process left, every cause named",
        measure=faults.measure,
    ),
    Bar(
        name="step-overhead",
        bound="<= 15% of a step by hand that does next to nothing",
        measure=overhead.measure,
    ),
    Bar(
        name="import-time",
        bound="<= 3% of import torch",
        measure=imports.measure,
    ),
)


if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__.split("\n", 1)[0]))
