"""A clue: what one piece of evidence says of a failure, before all are weighed."""

from __future__ import annotations

import functools
import os
import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_core import ProgramError
from drivetrain_health.failures._failure_class import FailureClass

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Names files of signs of one's own, with colons between them.
SIGNS_VARIABLE = "DRIVETRAIN_HEALTH_SIGNS"

RULES = tomllib.loads(files(__package__).joinpath("weighing.toml").read_text())
_FILES = ("output_signs.toml", "kernel_signs.toml", "exceptions.toml")
_MOST_CHARACTERS = 300
# Of a line that is longer, its two ends are looked at.
_HALF_LINE = 2_000
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Clue(NamedTuple):
    """What one piece of evidence says.

    Attributes:
        failure_class: What kind of failure it tells of.
        cause: What exactly, as one word.
        reason: The piece itself, for people.
        blames_node: Whether the node where it was found is to blame.
        is_echo: Whether a failure elsewhere may look like this here.
        place: Where the program was.
    """

    failure_class: FailureClass
    cause: str
    reason: str
    blames_node: bool = True
    is_echo: bool = False
    place: str = ""


class Sign(NamedTuple):
    """What a line of text means.

    Attributes:
        pattern: What is searched for, in small letters; without nested repetitions, so
            that no line takes long.
        clue: What a line says that has it, without the line.
        example: A line that has it.
    """

    pattern: re.Pattern[str]
    clue: Clue
    example: str


def signs(table: str) -> tuple[Sign, ...]:
    """Returns the signs of a table, in their order: first the user's own, then ours.

    Args:
        table: `sign` for what is written by programs and launchers, and `reported` for what
            counts if nothing else does; `certain`, `explaining` and `out_of_memory` for the
            kernel's messages; `program`, `frame`, `type` and `innermost` for exceptions that
            none of the first is found in.

    Raises:
        ProgramError: A file that `DRIVETRAIN_HEALTH_SIGNS` names is not of this form.

    Example:
        >>> signs("certain")[0].clue.cause
        'gpu-lost'
    """
    own = os.environ.get(SIGNS_VARIABLE, "")
    return tuple(sign for tables in _all_signs(own) for sign in tables.get(table, ()))


@functools.cache
def _all_signs(own: str) -> list[dict[str, list[Sign]]]:
    """Returns the tables of all files, the user's own before ours."""
    folder = files(__package__)
    paths = [Path(name) for name in own.split(os.pathsep) if name]
    return [_read_signs(path) for path in (*paths, *map(folder.joinpath, _FILES))]


def _read_signs(path: Any) -> dict[str, list[Sign]]:
    """Returns the tables of signs in a file."""
    found: dict[str, list[Sign]] = {}
    try:
        for table, rows in tomllib.loads(path.read_text()).items():
            found[table] = [
                _sign(row, *one) for row in rows for one in row["patterns"].items()
            ]
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        re.error,
    ) as error:
        message = f"{path}: signs of failures are expected, as in {_FILES[0]}: {error}"
        raise ProgramError(message) from error
    return found


def _sign(row: dict[str, Any], pattern: str, example: str) -> Sign:
    if "unless" in row:
        pattern = f"^(?!.*(?:{row['unless']})).*?(?:{pattern})"
    compiled = re.compile(pattern, re.MULTILINE)
    if not compiled.search(example.lower()):
        message = f"the pattern {pattern!r} is not found in its example {example!r}"
        raise ValueError(message)
    is_echo = row.get("is_echo", False)
    blames = row.get("blames_node", not is_echo)
    clue = Clue(FailureClass(row["class"]), row["cause"], "", blames, is_echo)
    return Sign(compiled, clue, example)


def find_sign(lines: Sequence[str], table: str, *but: str) -> Clue | None:
    """Returns what the strongest sign in some lines says, the first one of its kind.

    Args:
        lines: As `clean_lines` returns them.
        table: Of the signs, as `signs` takes it.
        but: Causes whose signs are left out.

    Example:
        >>> find_sign(["step 7", "write: No space left"], "sign").cause
        'disk-full'
    """
    # No line holds a newline, so that counting them finds the line of a match again
    # whatever lower() does to its length.
    text = "\n".join(lines).lower()
    for sign in (one for one in signs(table) if one.clue.cause not in but):
        if (found := sign.pattern.search(text)) is not None:
            line = lines[text.count("\n", 0, found.start())]
            return sign.clue._replace(reason=shortened(line))
    return None


def clean_lines(text: str) -> list[str]:
    r"""Returns the lines of a text, without colours, and long ones without their middle.

    Example:
        >>> clean_lines("10%\r20%\n\x1b[31mred\x1b[0m")
        ['10%', '20%', 'red']
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [_COLOURS.sub("", _without_middle(line)) for line in lines]


def _without_middle(line: str) -> str:
    if len(line) <= 2 * _HALF_LINE:
        return line
    return f"{line[:_HALF_LINE]} ... {line[-_HALF_LINE:]}"


def shortened(text: str) -> str:
    r"""Returns a text as one short line that can be printed anywhere.

    Example:
        >>> shortened("a\nb \x00 c")
        'a b c'
    """
    printable = "".join(c if c.isprintable() else " " for c in text[: 4 * _HALF_LINE])
    words = " ".join(printable.split())
    if len(words) <= _MOST_CHARACTERS:
        return words
    return f"{words[: _MOST_CHARACTERS - 3]}..."
