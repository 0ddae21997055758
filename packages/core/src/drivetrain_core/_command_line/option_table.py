"""Commands and their options, which files of TOML list in the order of their help."""

from __future__ import annotations

import os
import tomllib
from importlib import import_module
from typing import TYPE_CHECKING, Any

from drivetrain_core._command_line.option_values import integer, number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping
    from importlib.resources.abc import Traversable


def add_options(
    parser: argparse.ArgumentParser, file: Traversable, **kinds: Any
) -> None:
    """Adds the options of a file to a parser.

    A row has what argparse's `add_argument` takes, and besides: `names`; `integer` or
    `number`, the arguments of that function; `kind`, one of those given here; `variable`,
    of the environment, with the default; `group`, the title of those it stands with;
    `exclusive`, of which only one may be given. Above the rows there may be a `description`.

    Args:
        parser: Of a command.
        file: As `importlib.resources.files` gives it.
        **kinds: Types of options that only this command has.

    Example:
        >>> import argparse, pathlib, tempfile
        >>> parser = argparse.ArgumentParser()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "options.toml")
        ...     row = 'names = ["--nodes"], integer = { least = 1 }'
        ...     _ = file.write_text(f"option = [ {{ {row} }} ]")
        ...     add_options(parser, file)
        >>> parser.parse_args(["--nodes", "2"])
        Namespace(nodes=2)
    """
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    parser.description = table.get("description", parser.description)
    _add_rows(parser, table["option"], kinds)


def add_commands(
    parser: argparse.ArgumentParser, file: Traversable, **kinds: Any
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    """Adds the commands of a file to a parser, and returns them; more may be added.

    A command has a `name`, a `help`, `run` as `deferred` takes it, and its rows of
    `option`; those outside of commands are of all.

    Args:
        parser: Of a program.
        file: As `importlib.resources.files` gives it.
        **kinds: Types of options that only this program has.

    Example:
        >>> import argparse, pathlib, tempfile
        >>> parser = argparse.ArgumentParser()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "commands.toml")
        ...     row = 'name = "name", help = "say it", run = "os:getlogin"'
        ...     _ = file.write_text(f"command = [ {{ {row} }} ]")
        ...     commands = add_commands(parser, file)
        >>> list(commands.choices)
        ['name']
    """
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    for row in table["command"]:
        text = row["help"]
        one = commands.add_parser(
            row["name"], help=text, description=text, allow_abbrev=False
        )
        one.set_defaults(run=deferred(row["run"]))
        _add_rows(one, [*table.get("option", ()), *row.get("option", ())], kinds)
    return commands


def deferred(target: str) -> Callable[[argparse.Namespace], int]:
    """Returns a command whose module is imported when the command runs.

    So a help text and a wrong option cost no import of what a command needs.

    Args:
        target: A function from the parsed arguments to the exit status, as
            `module:function`.

    Example:
        >>> from argparse import Namespace
        >>> deferred("operator:attrgetter")(Namespace()) # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        TypeError: attribute name must be a string
    """

    def run(arguments: argparse.Namespace) -> int:
        module, _, name = target.partition(":")
        return getattr(import_module(module), name)(arguments)  # type: ignore[no-any-return]

    return run


def _add_rows(
    parser: argparse.ArgumentParser,
    rows: Iterable[Mapping[str, Any]],
    kinds: Mapping[str, Any],
) -> None:
    places: dict[Any, Any] = {("", ""): parser}
    for row in map(dict, rows):
        place = row.pop("group", ""), row.pop("exclusive", "")
        group = place[0], ""
        if group not in places:
            places[group] = parser.add_argument_group(group[0])
        if place not in places:
            places[place] = places[group].add_mutually_exclusive_group()
        for name, make in (("integer", integer), ("number", number)):
            if name in row:
                row["type"] = make(**row.pop(name))
        if "kind" in row:
            row["type"] = kinds[row.pop("kind")]
        if "variable" in row:
            row["default"] = os.environ.get(row.pop("variable"), row["default"])
        places[place].add_argument(*row.pop("names"), **row)
