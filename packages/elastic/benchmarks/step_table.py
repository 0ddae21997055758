"""Whether a step is that of the plain loop: programs by ranks, one of which is killed."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from drivetrain_testing import Row

_TABLE = Path(__file__).resolve().parents[1] / "tests" / "step_table.py"
# How many programs the quick form has, by the same number apart.
_EVERY = 6


def step_table(quick):
    """Counts how cases end: as the plain loop, refused by name, wrong, or not at all."""
    ranks = ["2"] if quick else ["1", "2", "3"]
    command = [sys.executable, str(_TABLE), "--ranks", *ranks]
    if quick:
        command += ["--every", str(_EVERY)]
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    num = Counter(row["found"] for row in rows)
    kinds = ("equal", "refused", "wrong", "hangs")
    told = ", ".join(f"{num[kind]} {kind}" for kind in kinds)
    programs = len({row["name"] for row in rows})
    return Row(
        figure=f"{programs} programs x {', '.join(ranks)} ranks: {told}",
        holds=num["equal"] + num["refused"] == len(rows) > 0,
        proven_on="cpu-gloo",
        details={"wrong": [r for r in rows if r["found"] in {"wrong", "hangs"}]},
    )
