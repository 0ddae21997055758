"""Plants faults one by one, and says which of them the tests near them find.

    nox -s planted -- [--slow] [--resume] [--json FILE] [NUMBER...]

Each fault is tried with the tests that `choose.py` gives for its file, stopped at the first
that fails, for three minutes at most. The file is as it was afterwards. Slow tests are left
out, as they are by `nox -s tests`; `--slow` runs them too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from choose import BUDGET_S, ROOT, SECONDS, choose, describe, near_tests

__all__ = ["Fault", "is_found", "kept", "planted", "read_faults"]

_LIMIT_S = 180.0
# At least so many are found.
_LEAST = 36
_OWN = "integration/selection/"
_WITHOUT_GPU = "not interpreter and not gpu and not multigpu"
_PYTEST = ("-P", "-m", "pytest", "-q", "-x", "--doctest-modules", "-n", "3")


class Fault(NamedTuple):
    """A text of a file, and what stands there instead."""

    file: str
    was: str
    now: str


def read_faults(root: Path) -> list[Fault]:
    """Returns the faults that there are to plant."""
    text = (root / "integration/selection/planted.toml").read_text("utf-8")
    return [
        Fault(f"packages/{one['file']}", one["was"], one["now"])
        for one in tomllib.loads(text)["fault"]
    ]


@contextlib.contextmanager
def planted(fault: Fault, root: Path) -> Iterator[None]:
    """Has a file with a fault in it, for a time.

    Raises:
        ValueError: Its text does not occur in the file once.
    """
    file = root / fault.file
    text = file.read_text("utf-8")
    if text.count(fault.was) != 1:
        message = (
            f"{fault.file} has {text.count(fault.was)} times {fault.was!r}, not once"
        )
        raise ValueError(message)
    file.write_text(text.replace(fault.was, fault.now), encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(text, encoding="utf-8")


def is_found(code: int | None) -> bool:
    """Returns whether pytest's exit shows a fault: tests failed, or could not be read."""
    return code in {1, 2}


def trial(fault: Fault, root: Path, mark: str) -> dict[str, Any]:
    """Runs the tests that a fault's file reaches, and `-m mark` selects; returns what came."""
    seconds = json.loads(SECONDS.read_text("utf-8")) if SECONDS.exists() else {}
    near = near_tests(root, [fault.file])
    # Those of the selection see that the text is another one, and say nothing of it.
    near = {file: n for file, n in near.items() if not file.startswith(_OWN)}
    chosen = choose(near, seconds, BUDGET_S)
    begun = time.monotonic()
    row: dict[str, Any] = {**fault._asdict(), "files_of_tests": len(chosen.run)}
    if not chosen.run:
        return {**row, "found": False, "by": "no test is near", "seconds": 0.0}
    # The nearest first, however many tests it holds.
    select = ["-m", mark, "--dist", "loadfile", "--no-loadscope-reorder"]
    command = [sys.executable, *_PYTEST, *select, *chosen.run]
    with planted(fault, root):
        told, code = _run(command, root)
    if code is None:
        # It hangs because of the fault only if it ends well without.
        found, by = _run(command, root)[1] == 0, "no end"
    else:
        failed = (x for x in told.splitlines() if x.startswith(("FAILED", "ERROR")))
        by = next(failed, f"exit code {code}")
        found = is_found(code) and not by.startswith("exit code")
    seconds_taken = round(time.monotonic() - begun, 1)
    return {**row, "found": found, "by": by, "seconds": seconds_taken}


def kept(
    rows: Mapping[str, Any], faults: Sequence[Fault], of_code: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the rows that are of these faults, these sources and this selection."""
    wanted = {
        str(number): {**fault._asdict(), **of_code}
        for number, fault in enumerate(faults)
    }
    return {
        number: row
        for number, row in rows.items()
        if number in wanted and wanted[number].items() <= row.items()
    }


def _run(command: Sequence[str], root: Path) -> tuple[str, int | None]:
    """Returns what a command says, and its exit code; None where it did not end in time."""
    with subprocess.Popen(
        command,
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            told, _ = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            # Its workers as well, of which one may hang.
            os.killpg(process.pid, signal.SIGKILL)
            return "", None
        except BaseException:
            # Whoever ends this waits for no test.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return told, process.returncode


def main(argv: Sequence[str] | None = None) -> int:
    """Tries all faults, or those that are named; returns 1 if too few are found."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--slow", action="store_true", help="run slow tests too")
    parser.add_argument("--resume", action="store_true", help="keep what is recorded")
    parser.add_argument("--json", type=Path, default=Path("planted.json"))
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER")
    arguments = parser.parse_args(argv)
    # Whoever ends this wants the sources back too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _: sys.exit(128 + got))
    mark = _WITHOUT_GPU if arguments.slow else f"{_WITHOUT_GPU} and not slow"
    faults = read_faults(ROOT)
    of_code = {"commit": describe(ROOT), "mark": mark}
    found: dict[str, Any] = {}
    if (arguments.resume or arguments.numbers) and arguments.json.exists():
        found = kept(json.loads(arguments.json.read_text("utf-8")), faults, of_code)
    for number in arguments.numbers or range(len(faults)):
        if str(number) in found and not arguments.numbers:
            continue
        one = found[str(number)] = {**trial(faults[number], ROOT, mark), **of_code}
        print(f"{number}: {'found' if one['found'] else 'NOT FOUND'}", end=" ")
        print(f"in {one['seconds']:.0f} s: {one['file']} {one['by'][:120]}", flush=True)
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    missed = [one["file"] for one in found.values() if not one["found"]]
    print(f"{len(found) - len(missed)} of {len(found)} found; not: {missed or 'none'}")
    if arguments.numbers:
        return int(any(not found[str(number)]["found"] for number in arguments.numbers))
    return int(len(found) - len(missed) < _LEAST)


if __name__ == "__main__":
    sys.exit(main())
