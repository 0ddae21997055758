"""The command `drivetrain-health diagnose`: why a job has failed, from what it left behind."""

from __future__ import annotations

import json
import math
import os
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_core import ProgramError
from drivetrain_core.commands import UsageError
from drivetrain_health.diagnosis import (
    read_error_record,
    read_output,
    read_output_tail,
)
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

_KERNEL_BYTES = 1 << 20
_NO_FAILURE = "no-failure"
_SIGNS = "DRIVETRAIN_HEALTH_SIGNS"
_CLOCK = re.compile(
    r"(20\d\d-[01]\d-[0-3]\d)[T ]([012]\d:[0-5]\d:[0-5]\d)[.,]?(\d{0,6})"
)


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
    if arguments.signs:
        os.environ[_SIGNS] = os.pathsep.join(arguments.signs)
    kernel = ""
    if arguments.kernel:
        kernel = read_output_tail(_checked(arguments.kernel), max_bytes=_KERNEL_BYTES)
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
    root = root_cause(list(map(Finding, map(_said_at_s, outputs, found), found)))
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


def _said_at_s(output: str, found: Diagnosis) -> float:
    """Returns the time before the line that decides, in seconds; infinity without one."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    told = found.reason[:80]
    last = next((at for at, line in enumerate(lines) if told in line), len(lines))
    for line in reversed(lines[: last + 1]):
        if clock := _CLOCK.search(line):
            try:
                return datetime.fromisoformat(
                    f"{clock[1]}T{clock[2]}.{clock[3]:0<6}"
                ).timestamp()
            except ValueError:
                continue
    return math.inf


def _nothing(
    arguments: argparse.Namespace, workers: list[Evidence], kernel: str
) -> str:
    """Returns that nothing is known of what was read, and what would help."""
    num_lines = sum(len(one.output.splitlines()) for one in workers)
    num_lines += len(kernel.splitlines())
    num_files = len(arguments.output) + bool(arguments.kernel)
    lines = "1 line" if num_lines == 1 else f"{num_lines} lines"
    files = "1 file" if num_files == 1 else f"{num_files} files"
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
