"""Measures on this machine what drivetrain-search claims, against its bounds.

`--quick` ends within a minute; the whole takes some hours on two cores, most of it for
the ten programs. `record_spaces.py` records the spaces anew.
"""

from __future__ import annotations

import sys

import faults
import live
import lost
import memory
import mesh_bugs
import mesh_search
import promise
import replay
import rivals
import silent_bugs
import ten_pairs
import three_minutes

from drivetrain_testing import Bar, run_bars

BARS = (
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
        name="mesh-search",
        bound=">= 0.95 of the best measured mesh",
        measure=mesh_search.measure,
    ),
    Bar(
        name="mesh-silent-bugs",
        bound="10 of 10 caught",
        measure=mesh_bugs.measure,
    ),
    Bar(
        name="broken-trials",
        bound="<= time-out + 5 s each, no process left, every cause named",
        measure=faults.measure,
    ),
)


if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__.split("\n", 1)[0]))
