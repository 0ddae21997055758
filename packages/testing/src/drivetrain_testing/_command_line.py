"""How a call of a command line ends, wherever it is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core.commands import CommandParser, run_command
from drivetrain_testing._clauses import require

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence


def exit_status(
    main: Callable[[list[str]], int], argv: Sequence[object]
) -> int | str | None:
    """Returns the status of a call.

    Args:
        main: Of the program.
        argv: The arguments.

    Example:
        >>> from drivetrain_core.cli import main
        >>> exit_status(main, ["diff", "/none", "/none"])
        1
    """
    try:
        return main([str(one) for one in argv])
    except SystemExit as left:
        return left.code


def run_subcommand(
    program: str,
    name: str,
    populate: Callable[[argparse.ArgumentParser], None],
    argv: Sequence[object],
) -> int | str | None:
    """Returns the status of a call of one command, by its own parser.

    Args:
        program: The program that it belongs to.
        name: Of the command.
        populate: Adds its options to a parser.
        argv: The arguments.
    """
    parser = CommandParser(prog=f"{program} {name}")
    populate(parser)
    try:
        arguments = parser.parse_args([str(one) for one in argv])
    except SystemExit as left:
        return left.code
    return run_command(program, arguments.run, arguments)


def check_wrong_use(
    program: str, status: object, out: str, err: str, says: str
) -> None:
    """Checks that a call was refused as wrong use, in its last line.

    Args:
        program: Its name.
        status: How the call ended.
        out: What it wrote on standard output.
        err: What it wrote on standard error.
        says: What stands in the last line.

    Raises:
        AssertionError: It was not.
    """
    last = (err.splitlines() or [""])[-1]
    require((status, out) == (2, ""), f"wrong use is status 2, got {status}, {out!r}")
    is_named = last.startswith(f"{program} ") and ": error: " in last
    require(is_named, f"the last line names the command and is an error: {last!r}")
    require(says in last, f"the last line says {says!r}: {last!r}")
