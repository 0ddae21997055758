"""Two searches of a minute, ten times: whether they find plans that are as fast.

Each search of the byte-level language model begins with cold caches. The two plans of a
pair run in turns, in sets of new processes; what processes of one plan differ by is no
fault of the search.

`ten_pairs.py [--resume]` keeps what it measures in `table/`, one file for each kind of
processor, and goes on from there with `--resume`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys

from three_minutes import (
    FOLDER,
    choices_of,
    one_set,
    path_of_table,
    processor,
    searched,
)

from drivetrain_core._plan import describe
from drivetrain_testing import Row, surroundings

PROGRAM, BUDGET_S = "language-model", 60
PAIRS, SETS = 10, 3
ALIKE, MOST_APART = 0.03, 1


def path_of_pairs():
    path = path_of_table()
    return path.with_name(f"pairs-{path.name}")


def pair():
    """Searches twice, and runs both plans beside each other."""
    plans = {key: choices_of(searched(PROGRAM, BUDGET_S)["plan"]) for key in "ab"}
    sets = [one_set(PROGRAM, plans) for _ in range(SETS)]
    return {
        "plans": {key: describe(plan) for key, plan in plans.items()},
        "step_s": sets,
    }


def apart(found):
    """Returns by what part two plans differ, and by what processes of one of them do."""
    if len(set(found["plans"].values())) == 1:
        return 0.0, 0.0
    steps = {key: [one[key] for one in found["step_s"]] for key in "ab"}
    usual = [statistics.median(values) for values in steps.values()]
    spread = max(
        (max(values) - min(values)) / statistics.median(values)
        for values in steps.values()
    )
    return abs(math.log(usual[0] / usual[1])), spread


def is_alike(found):
    difference, spread = apart(found)
    return difference <= ALIKE + spread


def measure_all(*, resume):
    """Measures ten pairs; those of an earlier run stay if they shall."""
    path = path_of_pairs()
    table = {"pairs": []}
    if resume and path.exists():
        table = json.loads(path.read_text())
    table |= {"processor": processor(), **surroundings()}
    FOLDER.mkdir(exist_ok=True)
    while len(table["pairs"]) < PAIRS:
        table["pairs"].append(pair())
        part = path.with_suffix(".part")
        part.write_text(json.dumps(table, indent=1) + "\n")
        part.rename(path)
        sys.stderr.write(f"{len(table['pairs'])}: {apart(table['pairs'][-1])}\n")
    return table["pairs"]


def measure(quick):
    """How many pairs of searches found plans that are as fast."""
    del quick
    path = path_of_pairs()
    pairs = json.loads(path.read_text())["pairs"] if path.exists() else []
    if len(pairs) < PAIRS:
        figure = f"{len(pairs)} of {PAIRS} pairs are recorded of {processor()}"
        return Row(figure=figure, holds=None)
    alike = sum(map(is_alike, pairs))
    worst = max(apart(found)[0] for found in pairs)
    return Row(
        figure=f"{alike} of {PAIRS} alike, {worst:.1%} apart at worst",
        holds=alike >= PAIRS - MOST_APART,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--resume", action="store_true", help="keep what is recorded")
    print(json.dumps(measure_all(resume=parser.parse_args().resume), indent=1))


if __name__ == "__main__":
    sys.exit(main())
