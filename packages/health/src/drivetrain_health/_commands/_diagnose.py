"""The command `drivetrain-health diagnose`: why a job has failed, from what it left behind."""

from __future__ import annotations

import json
import math
import re
import sys
from contextlib import suppress
from datetime import datetime
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
    from io import BufferedReader

    from drivetrain_health.failures import Diagnosis, ErrorRecord, Response

_NO_FAILURE = "no-failure"
# As most loggers write it; or as glog and torch do, without a year.
_CLOCK = re.compile(
    r"(?:(20\d\d)[-/](\d\d)[-/](\d\d)[T _]|\b[IWEF](\d\d)(\d\d) )(\d\d:\d\d:\d\d)"
    r"(?:[.,](\d+))?(?: ?(Z|UTC|GMT|[+-]\d\d:?\d\d)\b)?"
)
_NO_ORDER = (
    "warning: which was the first is a guess: times, or some time zones, are missing"
)
# Of gzip, bzip2, xz and zstd.
_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_CONTROL = re.compile(r"[\1-\7\x0e-\x1a\x1c-\x1f\x7f]")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    names = [*arguments.output, *arguments.error, arguments.kernel or ""]
    if not any(names) and arguments.exit_code is None:
        message = (
            "give what is to be explained: --output, --error, --kernel or --exit-code"
        )
        raise UsageError(message)
    if names.count("-") > 1:
        message = "the standard input, -, can be given once only"
        raise UsageError(message)
    kernel = _text_of(arguments.kernel) if arguments.kernel else ""
    common: dict[str, Any] = {
        "node": arguments.node,
        "exit_code": arguments.exit_code,
        "kernel": tuple(kernel.splitlines()),
    }
    workers = [
        Evidence(worker=n, output=_text_of(n), **common) for n in arguments.output
    ]
    workers += [
        Evidence(worker=n, error=_error_of(n), **common) for n in arguments.error
    ]
    if not workers:
        workers = [Evidence(worker="the worker", **common)]
    found = [diagnose(one) for one in workers]
    root = _first([one.output for one in workers], found)
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


def _first(outputs: list[str], found: list[Diagnosis]) -> Diagnosis:
    """Returns which failure was the first; a warning says if that is a guess."""
    dated = (m[1] for text in outputs for m in _CLOCK.finditer(text) if m[1])
    year = next(dated, "2024")
    told = [_finding(*pair, year) for pair in zip(outputs, found, strict=True)]
    findings = [one for one, _ in told]
    zones = {zone for one, zone in told if one.diagnosis.cause != _NO_FAILURE}
    root = root_cause(findings)
    last = root_cause([Finding(-at, one) for at, one in reversed(findings)])
    if root != last and zones not in ({True}, {False}):
        print(_NO_ORDER, file=sys.stderr)
    return root


def _finding(output: str, found: Diagnosis, year: str) -> tuple[Finding, bool | None]:
    """Returns when a failure was, by the line that decides, and whether that has a zone.

    Times without a zone are taken for UTC, and those without a year for of the given one.
    """
    lines = [" ".join(line.split()) for line in output.splitlines()]
    told = (at for at, line in enumerate(lines) if found.reason[:80] in line)
    for line in reversed(lines[: next(told, len(lines)) + 1]):
        if clock := _CLOCK.search(line):
            its_year, *days, time, fraction, zone = clock.groups()
            day = "-".join([its_year or year, *(one for one in days if one)])
            offset = "+00:00" if not zone or zone[0] in "ZUG" else zone
            with suppress(ValueError):
                when = datetime.fromisoformat(f"{day}T{time}.{fraction or 0}{offset}")
                return Finding(when.timestamp(), found), bool(zone)
    return Finding(math.inf, found), None


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


def _opened(name: str) -> BufferedReader:
    """Opens a file, or a pipe; `-` is the standard input.

    Raises:
        ProgramError: It cannot be read.
    """
    try:
        return open(0 if name == "-" else name, "rb", closefd=name != "-")
    except OSError as error:
        message = f"{name}: a file with text, or a pipe, is expected: {error.strerror}"
        raise ProgramError(message) from error


def _text_of(name: str) -> str:
    """Returns what a file, or a pipe, says.

    Raises:
        ProgramError: It cannot be read, or is no text.
    """
    with _opened(name) as file:
        is_text = not file.peek(8).startswith(_PACKED)
        text = read_output(file) if is_text else ""
    if not is_text or len(_CONTROL.findall(text)) * 20 > len(text):
        message = (
            f"{name} is compressed or binary: `zcat` it into a pipe, read by --output -"
        )
        raise ProgramError(message)
    return text


def _error_of(name: str) -> ErrorRecord:
    """Returns the exception that a file tells of.

    Raises:
        ProgramError: It tells of none.
    """
    with _opened(name) as file:
        error = read_error_record(file)
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
