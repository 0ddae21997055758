"""What torchrun says of the worker that failed first."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from drivetrain_health.failures._exceptions import clue_of_error
from drivetrain_health.failures._exit_codes import clue_of_exit_code, signal_of
from drivetrain_health.failures._tracebacks import find_tracebacks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_health.failures._clue import Clue

_BLOCK = "Root Cause (first observed failure):"
_END = re.compile(r"^[=-]{20,}$")
_FIELD = re.compile(r"^  (rank|exitcode|traceback) {1,12}: (.{1,500})$")
_FAILED = re.compile(r"\bfailed \(exitcode: (-?\d{1,9})\) (local_rank: \d{1,9})")
_NUMBER = re.compile(r"-?\d{1,9}")
_MOST_LINES = 500


def clue_of_launcher(lines: Sequence[str]) -> Clue | None:
    """Returns what a launcher says of the first failure; None if that is only an echo.

    An exit code of 1 is what any exception ends with, so that it says nothing of its own.

    Args:
        lines: As `clean_lines` returns them.

    Example:
        >>> clue_of_launcher(["x] failed (exitcode: -11) local_rank: 1 (pid: 7) of binary: py"])
        Clue(failure_class=<FailureClass.CRASH: 'crash'>, cause='segfault', \
reason='local_rank: 1: it was ended by SIGSEGV', blames_node=True, is_echo=False, place='')
    """
    begins = [at for at, line in enumerate(lines) if line.strip() == _BLOCK]
    if begins:
        clue = _of_block(lines[begins[-1] + 1 :][:_MOST_LINES])
        if clue is not None:
            return clue
    failed = [found for line in lines if (found := _FAILED.search(line)) is not None]
    # The launcher waits for all: the first that it names is the one that it saw first.
    clues = [_of_code(int(one[1]), one[2]) for one in failed]
    return next((clue for clue in reversed(clues) if clue is not None), None)


def _of_block(lines: Sequence[str]) -> Clue | None:
    fields: dict[str, str] = {}
    rest: list[str] = []
    for line in lines:
        if _END.match(line):
            break
        if "traceback" in fields:
            rest.append(line)
        elif (found := _FIELD.match(line)) is not None:
            fields[found[1]] = found[2].strip()
    text = textwrap.dedent("\n".join(rest))
    errors = find_tracebacks([fields.get("traceback", ""), *text.splitlines()])
    if errors:
        clue = clue_of_error(errors[-1])
        return None if clue.is_echo else clue
    code = _NUMBER.match(fields.get("exitcode", ""))
    if code is None:
        return None
    return _of_code(int(code[0]), f"rank {fields.get('rank', 'unknown')}")


def _of_code(code: int, who: str) -> Clue | None:
    if code in (0, 1):
        return None
    clue = clue_of_exit_code(code)
    if clue.is_echo:
        return None
    why = clue.reason if signal_of(code) else f"it ended with exit code {code}"
    return clue._replace(reason=f"{who}: {why}")
