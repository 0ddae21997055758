"""Runs tests again and again: beside busy loops, in other orders, those that wait 20 times.

    nox -s flakes -- [--slow] [--json FILE] [--resume] [--rounds N] [PYTEST ARGUMENTS...]

With `--slow`, slow tests are run 20 times, half of them beside loops: nearly all of them wait.

Each round is a run of pytest, and a row of the file: where it ran, its seed, how many tests
passed, and which did not. Nothing is tried twice: a test that failed once has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

__all__ = ["ROUNDS", "SLOW_ROUNDS", "Round", "busy", "command", "counts", "main", "run"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_LOOP = (sys.executable, "-c", "while True: pass")


class Round(NamedTuple):
    """One run: of which tests, beside how many loops, in which order, each how often."""

    tests: str
    num_loops: int = 0
    is_shuffled: bool = False
    times: int = 1


# The first says which tests wait.
ROUNDS = [
    *[Round("all", num_loops=2)] * 2,
    *[Round("all", is_shuffled=True)] * 2,
    *[Round("waiting", times=5), Round("waiting", num_loops=2, times=5)] * 2,
]
# They take minutes: what is recorded is kept after each time.
SLOW_ROUNDS = [Round("all", num_loops=2), Round("all")] * 10


@contextlib.contextmanager
def busy(num_loops: int) -> Iterator[None]:
    """Keeps that many cores busy."""
    loops = [subprocess.Popen(_LOOP) for _ in range(num_loops)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def counts(report: str) -> tuple[int, list[str]]:
    """Returns how many tests passed, and which failed, from a report of pytest."""
    failed: list[str] = []
    passed = 0
    for case in ET.fromstring(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('file')}::{case.get('name')}")
        elif case.find("skipped") is None:
            passed += 1
    return passed, failed


def command(one: Round, seed: int, folder: Path, options: Sequence[str]) -> list[str]:
    """Returns the command of a round.

    Args:
        one: The round.
        seed: Of the order, where it is shuffled.
        folder: For the report, and the list of tests that wait.
        options: pytest's, of rounds of all tests.
    """
    given = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "-n",
        "3",
        "--dist",
        "loadfile",
    ]
    given += ["--doctest-modules", f"--junitxml={folder / 'report.xml'}"]
    given += ["-o", "junit_family=xunit1"]
    order = f"--randomly-seed={seed}" if one.is_shuffled else "-pno:randomly"
    if one.tests == "waiting":
        repeat = ["-pwaits", f"--times={one.times}"]
        return [*given, order, *repeat, f"@{folder / 'waiting.txt'}"]
    return [*given, order, "-pwaits", f"--waiting={folder / 'found.txt'}", *options]


def run(one: Round, seed: int, folder: Path, options: Sequence[str]) -> dict[str, Any]:
    """Runs a round; returns its row."""
    begun = time.monotonic()
    # One that is there is of another round, whatever becomes of this one.
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": paths}
    with busy(one.num_loops):
        code = subprocess.run(
            command(one, seed, folder, options), check=False, cwd=ROOT, env=env
        ).returncode
    if one.tests == "all" and (folder / "found.txt").exists():
        names = (folder / "found.txt").read_text("utf-8").splitlines()
        (folder / "waiting.txt").write_text("\n".join(sorted(set(names))) + "\n")
    passed, failed = 0, ["pytest came to no report"]
    if report.exists():
        passed, failed = counts(report.read_text("utf-8"))
    seconds = round(time.monotonic() - begun)
    row = {**one._asdict(), "seed": seed, "code": code, "passed": passed}
    return {**row, "failed": failed, "seconds": seconds}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the rounds that are missing; returns 1 if any was not green."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--resume", action="store_true", help="keep what is recorded")
    parser.add_argument("--json", type=Path, default=Path("flakes.json"))
    parser.add_argument("--slow", action="store_true", help="slow tests instead")
    parser.add_argument("--rounds", type=int, help="at most so many")
    arguments, options = parser.parse_known_args(argv)
    folder = arguments.json.resolve().with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40"]
    commit = subprocess.run(git, check=False, stdout=subprocess.PIPE, text=True).stdout
    of_code = {"commit": commit.strip(), "slow": arguments.slow}
    rows: list[dict[str, Any]] = []
    if arguments.resume and arguments.json.exists():
        rows = json.loads(arguments.json.read_text("utf-8"))
    # What other code has shown says nothing of this.
    if not all(of_code.items() <= row.items() for row in rows):
        rows = []
    if not rows:
        (folder / "found.txt").unlink(missing_ok=True)
    rounds = SLOW_ROUNDS if arguments.slow else ROUNDS
    for one in rounds[len(rows) :][: arguments.rounds]:
        row = run(one, random.randrange(1 << 31), folder, options)
        rows.append({**row, **of_code})
        print(json.dumps(rows[-1]), flush=True)
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(row["code"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
