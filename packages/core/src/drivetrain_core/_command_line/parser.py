"""The parser of all command lines: every sub-command answers for itself."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class CommandParser(argparse.ArgumentParser):
    """A parser that treats all commands alike; its sub-parsers are of the same class.

    Options are not abbreviated. What a sub-command does not know is an error of that
    sub-command, with its usage. A call without a sub-command prints the help and has the
    status 2, as wrong use has. The parsed arguments have the innermost parser as `parser`.

    Args:
        arguments: As of `argparse.ArgumentParser`.
        options: Likewise.

    Example:
        >>> parser = CommandParser(prog="program")
        >>> commands = parser.add_subparsers(metavar="COMMAND")
        >>> commands.add_parser("list").set_defaults(run=lambda _: 0)
        >>> parser.parse_args(["list"]).parser.prog
        'program list'
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        super().__init__(*arguments, **options)
        self.set_defaults(parser=self)

    def add_subparsers(self, **options: Any) -> Any:
        """Adds sub-commands; without one of them the help is shown."""
        self.set_defaults(run=self._show_help)
        return super().add_subparsers(**options | {"required": False})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses all arguments: one that is not known is an error of this parser.

        `argparse` calls it for a sub-command, and would leave the error to the program.
        """
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def refuse(self, message: str) -> int:
        """Says in one line that the command was used wrongly, and returns the status 2."""
        sys.stderr.write(f"{self.prog}: error: {message}\n")
        return 2

    def option_names(self) -> dict[str, str]:
        """Returns how the options are typed, by the name of the parsed value."""
        # Of several long forms, the first.
        forms = [(a.dest, f) for a in self._actions for f in a.option_strings[::-1]]
        return {name: form for name, form in forms if form.startswith("--")}

    def _show_help(self, _: argparse.Namespace) -> NoReturn:
        self.print_help(sys.stderr)
        self.exit(2)


class ForwardParser(CommandParser):
    """Takes all arguments as they are, for a command that is carried out elsewhere.

    Args:
        forward: Takes the arguments, and returns the exit status.
        options: As of `argparse.ArgumentParser`.
    """

    def __init__(self, *, forward: Callable[[list[str]], int], **options: Any) -> None:
        super().__init__(**options, add_help=False)
        self._forward = forward

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses nothing."""
        del namespace
        rest = list(args or [])
        run = lambda _: self._forward(rest)
        return argparse.Namespace(parser=self, rest=rest, run=run), []


class ShowVersion(argparse.Action):
    """Prints what a function returns, which is not asked before, and ends with 0."""

    def __init__(self, *, versions: Callable[[], str], **options: Any) -> None:
        super().__init__(nargs=0, help="print the version, and end", **options)
        self._versions = versions

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Prints the version."""
        sys.stdout.write(f"{self._versions()}\n")
        parser.exit()
