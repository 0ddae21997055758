"""What commands that simulate share: inputs that are set, and how far they are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from drivetrain_core.commands import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def assignment(
    option: str, text: str, example: str, *, most: int | None = None
) -> tuple[str, list[float]]:
    """Returns a name and its values, with commas between them.

    Args:
        option: Of which this is an argument.
        text: The argument, as `NAME=NUMBER`.
        example: Of an argument that is right.
        most: How many values there may be; None for any number.

    Raises:
        UsageError: It is none.

    Example:
        >>> assignment("--set", "restart_s=30,60", "restart_s=60")
        ('restart_s', [30.0, 60.0])
    """
    name, equals, values = text.partition("=")
    try:
        numbers = [float(one) for one in values.split(",")]
    except ValueError:
        numbers = []
    if not equals or not 1 <= len(numbers) <= (most or len(numbers)):
        message = f"{option} needs NAME=NUMBER, as in {example}, got {text!r}"
        raise UsageError(message)
    return name.strip(), numbers


def reporter(arguments: argparse.Namespace, what: str) -> Callable[[int, int], None]:
    """Returns what shows how far long work is, where somebody looks.

    Args:
        arguments: Of the command.
        what: Is simulated.
    """
    is_shown = sys.stderr.isatty() and not arguments.json

    def report(done: int, total: int) -> None:
        if is_shown:
            end = "" if done < total else "\r\x1b[K"
            sys.stderr.write(f"\r{done} of {total} {what} simulated{end}")
            sys.stderr.flush()

    return report
