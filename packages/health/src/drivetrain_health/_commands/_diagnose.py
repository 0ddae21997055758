"""The command `drivetrain-health diagnose`: why a job has failed, from what it left behind."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_core import ProgramError
from drivetrain_core.commands import UsageError
from drivetrain_health.diagnosis import read_error_record, read_output
from drivetrain_health.failures import (
    Evidence,
    FailureClass,
    Finding,
    diagnose,
    respond,
    root_cause,
)

if TYPE_CHECKING:
    import argparse

    from drivetrain_health.failures import Diagnosis, ErrorRecord, Response

_NO_FAILURE = "no-failure"
_CLOCK = re.compile(r"(20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d)[.,]?(\d{0,6})")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    if not (
        arguments.output
        or arguments.error
        or arguments.kernel
        or arguments.exit_code is not None
    ):
        message = (
            "give what is to be explained: --output, --error, --kernel or --exit-code"
        )
        raise UsageError(message)
    kernel = read_output(_checked(arguments.kernel)) if arguments.kernel else ""
    common: dict[str, Any] = {
        "node": arguments.node,
        "exit_code": arguments.exit_code,
        "kernel": tuple(kernel.splitlines()),
    }
    workers = [
        Evidence(worker=name, output=read_output(_checked(name)), **common)
        for name in arguments.output
    ]
    workers += [
        Evidence(worker=name, error=_error_of(name), **common)
        for name in arguments.error
    ]
    if not workers:
        workers = [Evidence(worker="the worker", **common)]
    found = [diagnose(one) for one in workers]
    outputs = [one.output for one in workers]
    root = root_cause(list(map(Finding, map(_moment, outputs, found), found)))
    if root.cause == _NO_FAILURE:
        if arguments.exit_code is None:
            raise ProgramError(_nothing(arguments, workers, kernel))
        if arguments.json:
            _show_json(root, None, found)
        else:
            print(f"{root.reason}: no failure")
        return 0
    response = respond(0.0, root, [])
    show = _show_json if arguments.json else _show
    show(root, response, found)
    return 1 if root.failure_class == FailureClass.UNKNOWN else 0


def _moment(output: str, found: Diagnosis) -> float:
    """Returns a number that grows with the time before the line that decides."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    told = (at for at, line in enumerate(lines) if found.reason[:80] in line)
    for line in reversed(lines[: next(told, len(lines)) + 1]):
        if clock := _CLOCK.search(line):
            return float("".join(filter(str.isdigit, clock[1])) + "." + clock[2])
    return math.inf


def _nothing(
    arguments: argparse.Namespace, workers: list[Evidence], kernel: str
) -> str:
    """Returns that nothing is known of what was read, and what would help."""
    texts = [*(one.output for one in workers), kernel]
    num_lines = sum(len(text.splitlines()) for text in texts)
    num_files = len(arguments.output) + bool(arguments.kernel)
    lines = f"{num_lines} line{'s' * (num_lines != 1)}"
    files = f"{num_files} file{'s' * (num_files != 1)}"
    return (
        f"nothing that is known was found in {lines} of {files}; give --exit-code, or "
        "--error with the file in which a worker's exception was written"
    )


def _checked(name: str) -> Path:
    """Returns the path of a file that can be read.

    Raises:
        ProgramError: It cannot.
    """
    path = Path(name)
    if not path.is_file():
        message = f"{name}: a file with text is expected, there is none"
        raise ProgramError(message)
    with path.open("rb"):
        return path


def _error_of(name: str) -> ErrorRecord:
    """Returns the exception that a file tells of.

    Raises:
        ProgramError: It tells of none.
    """
    error = read_error_record(_checked(name))
    if error is None:
        message = (
            f"{name}: a record of an exception is expected, as torchelastic writes it to "
            "TORCHELASTIC_ERROR_FILE; this is none"
        )
        raise ProgramError(message)
    return error


def _show(root: Diagnosis, response: Response, found: list[Diagnosis]) -> None:
    rows = [
        ("class", root.failure_class.value),
        ("cause", root.cause),
        ("blame", root.node or "no node"),
        ("place", root.place),
        ("worker", root.worker if len(found) > 1 else ""),
        ("because", root.reason),
        ("follows", response.action.value),
    ]
    for name, text in rows:
        if text:
            print(f"{name:8} {text}")
    if len(found) > 1:
        lost = sum(one.is_echo and one.cause != _NO_FAILURE for one in found)
        lost -= root.is_echo
        num = len(found) - 1
        others = "1 other" if num == 1 else f"{num} others"
        print(f"{'and':8} {others}, of which {lost} only lost contact")


def _show_json(
    root: Diagnosis, response: Response | None, found: list[Diagnosis]
) -> None:
    report = {
        "root_cause": root._asdict(),
        "response": None if response is None else response._asdict(),
        "workers": [one._asdict() for one in found],
    }
    print(json.dumps(report, indent=2))
