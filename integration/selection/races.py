"""Takes waits for a device away, one by one, and says whether a test on it notices.

    nox -s planted -- races [--repeats N] [--clean N] [--json FILE] [NUMBER...]

Each wait of `races.toml` is tried with the tests that stand beside it there, on the simulated
accelerator, as often as `--repeats` says: a test has to fail each time. With `--clean` all of
these tests run so many times with every wait in its place, and none may fail.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from choose import ROOT, describe
from plant import Fault, is_found, planted

_LIMIT_S = 240.0
_DEVICE = {"SIMULATED_ACCELERATOR": "1"}
_SIDE_BY_SIDE = ("-n", "3", "--dist", "loadfile")


def read_races(root: Path) -> list[tuple[Fault, list[str]]]:
    """Returns each wait that may be taken away, with the tests that are to notice."""
    text = (root / "integration/selection/races.toml").read_text("utf-8")
    return [
        (Fault(f"packages/{one['file']}", one["was"], one["now"]), one["tests"])
        for one in tomllib.loads(text)["race"]
    ]


def run(tests: Sequence[str], *options: str) -> tuple[int | None, str]:
    """Returns the exit code of tests on the device, and the first that failed."""
    mark = ("-m", "simulated_accelerator and not slow", "-q", "-x")
    command = [sys.executable, "-P", "-m", "pytest", *mark, *options, *tests]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | _DEVICE,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return None, "no end"
    if done.returncode not in {0, 1, 2}:
        sys.exit(f"the tests do not run: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    failed = (x for x in done.stdout.splitlines() if x.startswith(("FAILED", "ERROR")))
    return done.returncode, next(failed, "")


def main(argv: Sequence[str] | None = None) -> int:
    """Tries all waits, or those that are named; returns 1 if one is not missed."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clean", type=int, default=0, help="runs with all waits")
    parser.add_argument("--json", type=Path, default=Path("races.json"))
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER")
    arguments = parser.parse_args(argv)
    races, rows, bad = read_races(ROOT), [], 0
    every_number = arguments.numbers or range(len(races))
    for number in every_number if arguments.repeats else []:
        fault, tests = races[number]
        with planted(fault, ROOT):
            codes = [run(tests) for _ in range(arguments.repeats)]
        noticed = sum(code is None or is_found(code) for code, _ in codes)
        bad += noticed < arguments.repeats
        by = next((told for _, told in codes if told), "no end")
        row: dict[str, Any] = {**fault._asdict(), "noticed": noticed, "by": by}
        rows.append({**row, "of": arguments.repeats, "commit": describe(ROOT)})
        print(f"{number}: {noticed} of {arguments.repeats}: {fault.file} {by[:140]}")
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    every = sorted({test for _, tests in races for test in tests})
    for number in range(arguments.clean):
        code, told = run(every, *_SIDE_BY_SIDE)
        bad += code != 0
        print(f"with all waits, {number + 1}: {'passed' if code == 0 else told}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
