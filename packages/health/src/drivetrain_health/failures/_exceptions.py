"""What an exception says: an error of the program, or of what it relies on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from drivetrain_health.failures._clue import Clue, clean_lines, find_sign, shortened
from drivetrain_health.failures._failure_class import FailureClass
from drivetrain_health.failures._output_signs import telling_lines
from drivetrain_health.failures._tracebacks import find_place, headlines

if TYPE_CHECKING:
    from drivetrain_health.failures._evidence import ErrorRecord

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
_MOST_CAUSE, _INNERMOST = 60, 12
_DIRECT, _HANDLED = "was the direct cause", "During handling of the above"


def clue_of_error(error: ErrorRecord) -> Clue:
    """Returns what the exception says that has ended a worker.

    What it says and what those say that have caused it count alike. It is an error of the
    program if its type is one that only programs raise, or if what it says is what torch
    and others say of programs; what is not known is unknown.

    Args:
        error: The exception.

    Example:
        >>> from drivetrain_health.failures import ErrorRecord
        >>> clue_of_error(ErrorRecord("ValueError", "no such rate")).cause
        'value-error'
        >>> clue_of_error(ErrorRecord("OSError", "[Errno 28] No space left on device")).cause
        'disk-full'
        >>> clue_of_error(ErrorRecord("lib.Odd", "x")).failure_class.value
        'unknown'
    """
    first, _, _ = error.message.partition("\n")
    said = shortened(f"{error.type}: {first}".rstrip(": "))
    known = _known(error) or Clue(FailureClass.UNKNOWN, "", "")
    name = _WORDS.sub("-", error.type.rpartition(".")[2]).strip("-").lower()
    return known._replace(
        cause=known.cause or name[:_MOST_CAUSE] or "error",
        reason=known.reason.rstrip(": ") or said,
        place=find_place(error.traceback),
    )


def _known(error: ErrorRecord) -> Clue | None:
    # A program may raise an error because of another one: that is the cause.
    lines = [line for text in headlines(error) for line in clean_lines(text)]
    more = find_sign([*lines, *telling_lines(clean_lines(error.message)[1:])], "sign")
    if more is not None and not more.is_echo:
        return more
    known = find_sign(lines, "sign")
    types = [error.type]
    if _DIRECT in error.traceback and _HANDLED not in error.traceback:
        types += [line.partition(":")[0] for line in lines]
    by_type = _wordless(types, "type")
    if by_type is not None and by_type.failure_class == FailureClass.PROGRAM:
        return by_type
    is_open = by_type is None or by_type.cause == "accelerator-error"
    own = find_sign(lines, "program") if is_open else None
    # Vague words are no proof where a known echo is in the same message.
    own = None if own and known and own.cause == "wrong-use" else own
    frames = clean_lines(error.traceback)[-_INNERMOST:]
    by_frame = own or _wordless(frames, "frame")
    return by_frame or known or by_type or _wordless(frames[-4:], "innermost")


def _wordless(lines: list[str], table: str) -> Clue | None:
    clue = find_sign(lines, table)
    return None if clue is None else clue._replace(reason="")
