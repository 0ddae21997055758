"""A clue: what one piece of evidence says of a failure, before all are weighed."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_health.failures._failure_class import FailureClass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
        failure_class: What kind of failure it tells of.
        cause: What exactly, as one word.
        blames_node: Whether the node where it was found is to blame.
        is_echo: Whether a failure elsewhere may look like this here.
    """

    pattern: str
    failure_class: FailureClass
    cause: str
    blames_node: bool = True
    is_echo: bool = False

    def clue(self, line: str) -> Clue:
        """Returns what a line says that has this sign."""
        return Clue(
            self.failure_class,
            self.cause,
            shortened(line),
            self.blames_node,
            self.is_echo,
        )


def read_signs(file: str, table: str) -> tuple[Sign, ...]:
    """Returns the signs of a table of a file beside this one, in their order.

    Args:
        file: Its name.
        table: Rows of it, with several patterns each.

    Example:
        >>> read_signs("kernel_signs.toml", "certain")[0].cause
        'gpu-lost'
    """
    rows = tomllib.loads(files(__package__).joinpath(file).read_text())[table]
    return tuple(
        Sign(
            pattern,
            FailureClass(row["class"]),
            row["cause"],
            row.get("blames_node", not row.get("is_echo", False)),
            row.get("is_echo", False),
        )
        for row in rows
        for pattern in row["patterns"]
    )


def find_sign(lines: Sequence[str], signs: Iterable[Sign]) -> Clue | None:
    """Returns what the strongest sign in some lines says, the last one of its kind.

    Args:
        lines: As `clean_lines` returns them.
        signs: What to look for, the strongest first.

    Example:
        >>> from drivetrain_health.failures import FailureClass
        >>> signs = [Sign("disk full", FailureClass.STORAGE, "disk-full")]
        >>> find_sign(["step 7", "write: Disk full"], signs).cause
        'disk-full'
    """
    # No line holds a newline, so that counting them finds the line of a match again
    # whatever lower() does to its length.
    text = "\n".join(lines).lower()
    for sign in signs:
        starts = [m.start() for m in re.finditer(sign.pattern, text, re.MULTILINE)]
        if starts:
            return sign.clue(lines[text.count("\n", 0, starts[-1])])
    return None


def clean_lines(text: str) -> list[str]:
    r"""Returns the lines of a text, without colours, and long ones without their middle.

    Example:
        >>> clean_lines("10%\r20%\n\x1b[31mred\x1b[0m")
        ['10%', '20%', 'red']
    """
    lines = text.replace("\r", "\n").split("\n")
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
